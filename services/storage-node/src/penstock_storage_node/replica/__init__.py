"""The partitions of this node, and what becomes of them: the shell between log and replication.

`background`     What a node does by the clock
`compactor`      Compaction of this node's logs
`corruption`     Bits that a disk forgot
`log_start`      The lower end of a partition's log
`manager`        Every partition of this node, kept as the metadata want it
`memory_budget`  How many bytes are appended and not yet written, all logs of the node together
`partition`      One partition on this node
`topic_config`   Settings of topics as they count on this node, and their effect on its partitions while it
"""
