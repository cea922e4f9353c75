"""Rows of Spark to topics, by the gateways' Produce stream.

Parts: `options` (what was asked), `columns` (what the columns mean), `window` (which batch is sent when, and again),
`producer` (the calls), `writer` (what Spark calls); and of exactly-once writing, which no option gives yet,
`protocol` (what its driver and tasks decide).
"""
