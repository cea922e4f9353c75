"""Partition logs on a storage node's own disk, in Kafka's file form byte for byte.

`checkpoints`     the small files: checkpoints, partition.metadata, meta.properties
`compaction`      compaction: what to rewrite, the process that does it, and how the files change places
`directory`       a data directory: identity, lock, checkpoints, the partitions in it
`epochs`          which leader epoch starts at which offset
`fs`              every system call, so that tests can record and break them
`index`           offset index and time index
`job_order`       the layer between: write and flush jobs in order
`jobs`            what runs in the disk pool: write, flush and read jobs
`log_core`        its lowest layer: state and staging, no system call
`partition_log`   one partition's log: open, read, truncate, retention, close
`producer_state`  idempotence: the last five batches of every producer, snapshots
`reading`         cutting whole batches out of files and staged memory
`recovery`        what happens at open: scan, cut, rebuild
`retention`       which old segments go
`segment`         one log file with its two indexes
`timestamps`      offsets by timestamp
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
