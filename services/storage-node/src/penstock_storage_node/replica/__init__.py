"""The partitions of this node, and what becomes of them: the shell between log and replication.

`background`     What a node does by the clock
`compactor`      Compaction of this node's logs
`corruption`     Bits that a disk forgot
`drain`          Once per pass of the event loop
`failures`       What becomes of a write or a read that failed
`log_start`      The lower end of a partition's log
`manager`        The partitions of this node, kept as the metadata want them
`memory_budget`  How many bytes are appended and not yet written, all logs of the node together
`partition`      One partition on this node
`placement`      Which logs this node should hold
`registry`       Which partitions this node holds, and the metadata that say so
`roles`          The roles of this node's partitions
`topic_config`   Settings of topics as they count on this node, and their effect on its partitions while it
"""
