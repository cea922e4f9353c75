"""Penstock's core: what every process knows. No event loop, no transport and no Kafka bytes; pure but for one room,
`process`.

`addresses`    addresses: reading `host:port`, and what counts as loopback
`config`       dynamic configuration, as Kafka's clients see it
`errors`       Kafka's error codes, and the exception that carries one to a client
`failpoints`   named places where a test may end, hold up or fail the process
`history`      what happened to the cluster, in words
`ids`          the small types that everything speaks in
`limits`       every bound of the system, named
`metadata`     the immutable image of the cluster and how records advance it
`observation_documents`  what is amiss in a cluster, and how much room there is, as JSON documents
`operation_documents`  plans, operations and the state of nodes as JSON documents
`process`      what touches the process: its environment, files, clock and threads
`racks`        failure domains as a path, and what of it clients are told
`security`     what decides in sign-in, rights and quotas
`text`         text of others made harmless
`topics`       rules for topic names
"""

__version__ = "0.1.0"
