"""Replication as plain state machines: they decide, the shells around them do.

`replica`     one partition on this node: which role it has
`state`       what all parts of a replica share: its log, its high watermark
`leadership`  what a leader knows: followers' progress, ISR, proposals, waiting acks
`following`   what a follower does with what its leader sends
`acks`        produce requests that wait for an offset
`sender`      the leader's end of a Replicate stream: sessions, credit, what to send next
`receiver`    the follower's end: sessions to open, acks to send
`effects`     what a step wants done

Nothing here imports asyncio, grpc, files or a clock: time is an argument. Rules: Kafka's
`Partition`, `Replica` and `AbstractFetcherThread`, and KIP-101, 279, 320, 497, 595, 841, 903.
"""
