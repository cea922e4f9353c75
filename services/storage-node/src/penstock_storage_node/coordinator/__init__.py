"""The group coordinator: groups and committed offsets of the partitions of `__consumer_offsets` led here.

`shard` and what it uses (`classic`, `consumer`, `offsets`, `group`, `timers`, `records`) decide and are
plain synchronous objects: clock, ids and log are passed in. `host` is the shell around them.
"""
