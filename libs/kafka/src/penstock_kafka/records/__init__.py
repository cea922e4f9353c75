"""Kafka's RecordBatch v2: header access, checks, building and reading.

`batch`        Header of Kafka's RecordBatch v2 (magic 2), read and stamped in place
`build`        Building a RecordBatch v2 from records
`check`        Checks of what producers send, before it is stored (rule
`compiled`     aiokafka's compiled record reader, without aiokafka's client
`compression`  Compression of a batch's records, with a hard bound on what comes out
`crc`          CRC-32C of any buffer
`read`         Reading the records of a batch in plain Python
`recompress`   One batch in another codec
`varint`       Zigzag varints as records use them (Kafka
"""
