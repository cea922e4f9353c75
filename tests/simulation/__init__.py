"""The cluster in one process, under one seeded scheduler: see `docs/testing/simulation.md`.

Everything that decides is the code that ships. What stands in for the outside world:

| outside world | stand-in |
|---|---|
| event loop, its threads and clock | `scheduler.SimLoop`: coroutines run on the simulated clock |
| gRPC channels and servers | `rpc`: bytes over `network` |
| sockets of the Raft port | `raft_net`: frames over `network` |
| threads (disk pool, Raft tick, snapshot writer) | `disk_pool`, `controller_host` |
| the compaction worker's process | `cleaner_process` |
| files | `support.simulated_fs`, also under the controllers (`sim_os`) |
| what PySyncObj can be given by no argument | `patches` |
| clients | `producer`, `consumer`: models of librdkafka's idempotent producer and of a reader |
| members of consumer groups | `group_classic`, `group_consumer`: models of the Java client's, both protocols |
| an operator of the cluster | `operations`: asks controllers for operations, and stops them again |
| the command that restarts processes, new builds | `restarts` |
"""
