"""The controller on the event loop: what it does while it is the active one.

`command_queue`    One coroutine that turns waiting requests into commands, and commands into answers
`controller`       The controller on the event loop
`metadata_stream`  The metadata stream
"""
