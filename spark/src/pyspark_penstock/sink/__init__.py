"""Rows of Spark to topics, by the gateways' Produce stream.

Parts: `options` (what was asked), `columns` (what the columns mean), `window` (which batch is sent when, and again),
`producer` (the calls that send), `appending` (a task's rows to partitions), `writer` (what Spark calls); and of
exactly-once writing `protocol` (what its driver and tasks decide), `units` (which unit a task writes), `calls` (the
calls about stages and units), `staging` (a task, and a driver).
"""
