"""Penstock's pure core: no event loop, no transport, no files.

`ids`       the small types that everything speaks in
`errors`    Kafka's error codes and the one exception that carries them
`limits`    every bound of the system, named
`metadata`  the immutable image of the cluster and how records advance it
`records`   RecordBatch v2: check, stamp, read headers
`kafka`     the Kafka wire forms: frames, API table, codecs
"""

__version__ = "0.1.0"
