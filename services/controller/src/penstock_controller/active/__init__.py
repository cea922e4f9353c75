"""The gRPC side of the controller: thin asyncio shells around `state` and `quorum`.

`core`      the controller on the event loop: follows the quorum and acts while it is active
`metrics`   metrics of a controller
`service`   the gRPC methods: parse, ask `core`, answer
`watchers`  the metadata stream: deltas for those who are near, a snapshot for the others
`worker`    the queue: waiting requests become commands, and commands answers
"""
