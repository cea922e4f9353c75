"""The controller on the event loop: what it does while it is the active one.

`cluster_metrics`  what the active controller tells of the cluster at a scrape
`command_queue`    one coroutine that turns waiting requests into commands, and commands into answers
`controller`       the controller on the event loop
`metadata_stream`  the metadata stream: recent history for those who are near, a snapshot for the others
`operations`       operations: plans in slices, steps one after another
`ports`            what a controller takes from the world around it
"""
