"""Kafka's RecordBatch v2: header access, checks, building and reading.

`batch`        the header, read and stamped in place
`build`        building batches: for tools, tests and internal topics
`check`        checks of what producers send, before it is stored
`compiled`     aiokafka's compiled record reader, without aiokafka's client
`compression`  compression of a batch's records, with a hard bound on what comes out
`crc`          CRC-32C of any buffer
`markers`      the record that ends a transaction, built and read
`read`         reading records in plain Python
`recompress`   one batch in another codec
`varint`       zigzag varints as records use them
"""
