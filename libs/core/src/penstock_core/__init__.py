"""Penstock's pure core: what every process knows. No event loop, no transport, no files, no Kafka bytes.

`addresses`   Addresses
`config`      Dynamic configuration, as Kafka's clients see it
`errors`      Kafka's error codes, and the exception that carries one to a client
`failpoints`  Named places in the code where a test may end, hold up or fail the process
`ids`         Small types that the whole of Penstock speaks in
`limits`      Every bound of the system that is not a setting, with what it protects
`metadata`    The cluster's metadata as every role holds it
`topics`      Rules for topic names and the settings that a topic has when nothing is set
"""

__version__ = "0.1.0"
