"""Rows of `make bench-spark`: Penstock's Spark source and sink beside Spark's Kafka connector.

`documents`  what is kept of a bench, and the rows that follow from it
`goals`      what each row has to reach
`jobs`       what is measured: reads, writes, micro-batches
`memory`     a session of its own, read again and again: its JVM, its workers
`plan`       which rounds are left to do
`profiles`   what the Python side spends its time on
`sessions`   Spark, and what its processes take
`systems`    both systems with the same records
`tables`     rows for people
"""
