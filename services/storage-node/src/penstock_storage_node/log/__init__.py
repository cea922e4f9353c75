"""Partition logs on a storage node's own disk, in Kafka's file form byte for byte.

`partition_log`   one partition's log: append, write jobs, read, truncate, retention
`directory`       a data directory: identity, lock, checkpoints, the partitions in it
`jobs`            what runs in the disk pool: write, flush and read jobs
`segment`         one log file with its two indexes
`index`           offset index and time index
`recovery`        what happens at open: scan, cut, rebuild
`producer_state`  idempotence: the last five batches of every producer, snapshots
`epochs`          which leader epoch starts at which offset
`checkpoints`     the small files: checkpoints, partition.metadata, meta.properties
`fs`              every system call, so that tests can record and break them
`simulated_fs`    an in-memory disk that forgets what was not synced
"""

from penstock_storage_node.log.directory import LogDirectory, PartitionDirectory
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.jobs import FlushJob, ReadData, ReadJob, WriteJob
from penstock_storage_node.log.partition_log import Appended, Duplicate, LogState, PartitionLog

__all__ = [
    "Appended",
    "Duplicate",
    "FileSystem",
    "FlushJob",
    "LogDirectory",
    "LogState",
    "PartitionDirectory",
    "PartitionLog",
    "ReadData",
    "ReadJob",
    "WriteJob",
]
