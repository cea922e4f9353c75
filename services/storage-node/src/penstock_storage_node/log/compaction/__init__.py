"""Compaction: what to rewrite, the process that does it, and how the files change places.

`offset_map`     newest offset by key, in memory of a fixed size (Kafka: SkimpyOffsetMap)
`plan`           whether and how far a log may be compacted now
`record_filter`  taking records out of a batch
`rewrite`        compaction of one log's closed segments
`swap`           putting a compacted segment in the place of those that it was made from
`worker`         the process that compacts
"""
