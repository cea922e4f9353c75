"""Penstock's pure core: no event loop, no transport, no files.

`config_catalog`  every setting that clients may see or set, of topics, nodes, the cluster and groups
`errors`          Kafka's error codes and the one exception that carries them
`failpoints`      named places where a test may end, hold up or fail the process
`ids`             the small types that everything speaks in
`kafka`           the Kafka wire forms: frames, API table, codecs
`limits`          every bound of the system, named
`metadata`        the immutable image of the cluster and how records advance it
`records`         RecordBatch v2: check, stamp, read headers
`topic_settings`  settings of a topic: Kafka's names and defaults, checked in one place
`topics`          rules for topic names
"""

__version__ = "0.1.0"
