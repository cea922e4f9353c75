"""Penstock's pure core: what every process knows. No event loop, no transport, no Kafka bytes, and no files but in
`credentials` and `native_account`.

`addresses`    addresses: reading `host:port`, and what counts as loopback
`config`       dynamic configuration, as Kafka's clients see it
`credentials`  reads files that say who somebody is: client files, tokens
`errors`       Kafka's error codes, and the exception that carries one to a client
`failpoints`   named places where a test may end, hold up or fail the process
`grpc_process`  what gRPC is told by the environment
`history`      what happened to the cluster, in words
`ids`          the small types that everything speaks in
`limits`       every bound of the system, named
`metadata`     the immutable image of the cluster and how records advance it
`native_account`  how a client of the native API says who it is
`observation_documents`  what is amiss in a cluster, and how much room there is, as JSON documents
`operation_documents`  plans, operations and the state of nodes as JSON documents
`racks`        failure domains as a path, and what of it clients are told
`security`     what decides in sign-in, rights and quotas
`text`         text of others made harmless
`topics`       rules for topic names
"""

__version__ = "0.1.0"
