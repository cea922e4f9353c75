"""Compaction: what to rewrite, the process that does it, and how the files change places.

`offset_map`     Newest offset by key, in memory of a fixed size (Kafka
`plan`           Whether and how far a log may be compacted now
`record_filter`  Taking records out of a batch
`rewrite`        Compaction of one log's closed segments
`swap`           Putting a compacted segment in the place of those that it was made from
`worker`         The process that compacts
"""
