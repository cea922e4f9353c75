"""The partitions of this node, and what becomes of them: the shell between log and replication.

`background`     what a node does by the clock
`closing`        how a node that stops closes its logs
`compactor`      compaction of this node's logs
`corruption`     bits that a disk forgot
`drain`          once per pass of the event loop
`failures`       what becomes of a write or a read that failed
`inventory`      logs that the metadata do not account for
`log_access`     which work on one log may run beside which
`log_start`      the lower end of a partition's log
`manager`        the partitions of this node, kept as the metadata want them
`memory_budget`  how many bytes are appended and not yet written, all logs of the node together
`partition`      one partition on this node
`placement`      which logs this node should hold
`registry`       which partitions this node holds, and the metadata that say so
`roles`          the roles of this node's partitions
`sizes`          what this node's replicas take on its disk, looked at where something has changed
`stray_proof`    what the metadata say of a log that was set aside
`strays`         logs that were set aside: which there are, and which go once their time is over
`topic_config`   settings of topics as they count on this node, and their effect on its partitions while it
                 runs
"""
