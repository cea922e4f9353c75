"""The controller on the event loop: what it does while it is the active one.

`cluster_metrics`  what the active controller tells of the cluster at a scrape
`command_queue`    one coroutine that turns waiting requests into commands, and commands into answers
`controller`       the controller on the event loop
`events_file`      the file of events beside the journal
`history`          what this controller remembers of what it applied
`metadata_stream`  the metadata stream: recent history for those who are near, a snapshot for the others
`observer`         what is amiss in the cluster, and how much room there is
`newcomers`        nodes that get their share by themselves
`operations`       operations: plans in slices, steps one after another
`recovery`         hears what nodes have, elects by it after an import, takes topics on demand
`ports`            what a controller takes from the world around it
`raft_metrics`     metrics of the quorum as one controller sees it
`rolling`          rolling operations: how controllers are, and which command restarts what
"""
