"""Partition logs on a storage node's own disk, in Kafka's file form byte for byte.

`aborted_index`    the aborted transactions of a segment
`checkpoints`      the small files: checkpoints, partition.metadata, meta.properties
`compaction`       rewriting closed segments: what, by whom, and how files change places
`damage`           data that the disk gave back wrong, as an error
`directory`        a data directory: identity, lock, the partitions in it
`epochs`           which leader epoch starts at which offset
`fs`               every system call, so that tests can record and break them
`index`            offset index and time index
`jobs`             what runs in the disk pool: write, flush and read jobs
`log`              one partition's log: the face of the four parts that follow
`offset_files`     the files with an offset a partition: recovery points, high watermarks, log starts, what was cleaned
`ports`            what a log asks of its surroundings, what they keep of it
`producer_replay`  producers and aborted transactions as the batches tell them
`producer_state`   idempotence and transactions: the last batches of every producer, snapshots
`reader`           reads on the loop and in the pool, offsets by timestamp
`reading`          cutting whole batches out of files and staged memory
`recovery`         what happens at open: scan, cut, rebuild
`retention`        which old segments go
`segment`          one log file with its indexes
`set_aside_ends`   what a log that was set aside holds, told without opening it
`sizes`            how many bytes offsets take, by the indexes
`slots`            data directories that several processes share: live, retired, new
`state`            what is known of a log, and steps that only change that: no system call
`strays`           logs that were set aside
`timestamps`       offsets by timestamp
`transactions`     where transactions begin and end: the last stable offset
`truncation`       cutting a log
`writer`           staged data to disk: write and flush jobs in order
"""

from penstock_storage_node.log.aborted_index import Rows
from penstock_storage_node.log.directory import DirectoryPorts, LogDirectory, PartitionDirectory
from penstock_storage_node.log.fs import FileSystem
from penstock_storage_node.log.jobs import FlushJob, ReadData, ReadJob, WriteJob
from penstock_storage_node.log.log import PartitionLog
from penstock_storage_node.log.ports import Checkpointed, LogPorts
from penstock_storage_node.log.producer_state import Origin, ProducerEntry
from penstock_storage_node.log.reader import AbortedJob
from penstock_storage_node.log.sizes import SizedRange
from penstock_storage_node.log.state import Appended, Duplicate, LogIdentity, LogState

__all__ = [
    "AbortedJob",
    "Appended",
    "Checkpointed",
    "DirectoryPorts",
    "Duplicate",
    "FileSystem",
    "FlushJob",
    "LogDirectory",
    "LogIdentity",
    "LogPorts",
    "LogState",
    "Origin",
    "PartitionDirectory",
    "PartitionLog",
    "ProducerEntry",
    "ReadData",
    "ReadJob",
    "Rows",
    "SizedRange",
    "WriteJob",
]
