"""What a process does whose node was removed: its directory is marked, its logs go, and it ends or becomes a spare.

The mark comes first. From then on nobody serves from this directory, whatever the controllers may say later, and a
crash in the middle leaves nothing that looks like a node's.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock_core.errors import PenstockError
from penstock_core.ids import TopicId
from penstock_runtime.addresses import StartupError
from penstock_runtime.lifecycle import Lifecycle
from penstock_storage_node.cluster.registration import DirectoryRetired
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory


async def mark(lifecycle: Lifecycle, pool: DiskPool, directory: LogDirectory, news: DirectoryRetired) -> bool:
    """Note it durably. False: the disk refuses; the next start hears it again."""
    try:
        await pool.run(lambda: directory.mark_retired(news.operation_id))
    except OSError as e:
        lifecycle.log.error(
            "the data directory was retired and can't be marked so", path=str(directory.path), reason=str(e)
        )
        return False
    return True


async def drop_logs(
    lifecycle: Lifecycle, pool: DiskPool, directory: LogDirectory, is_known: Callable[[TopicId], bool]
) -> None:
    """Free the space, once no log is open. Files that cannot be removed are told of and stay."""
    try:
        dropped, kept = await pool.run(lambda: directory.drop_logs(is_known))
    except (OSError, PenstockError) as e:
        lifecycle.log.warning("files of a removed node remain", path=str(directory.path), reason=str(e))
        return
    if dropped or kept:
        lifecycle.log.info(
            "logs of a removed node: those of known topics are deleted, others are set aside",
            path=str(directory.path),
            deleted=dropped,
            set_aside=kept,
        )


def refuse(directory: LogDirectory) -> None:
    """Raises StartupError for a directory that says itself that it was retired."""
    if directory.retired_by:
        operation = directory.retired_by
        by = f"operation {operation}" if operation > 0 else "an operation"
        node = f" (it was node {directory.node_id}'s)" if directory.node_id > 0 else ""
        raise StartupError(
            f"data directory {directory.path}{node} was retired by {by}: what it held is elsewhere; empty it to "
            "start a new node with it, or choose another data_dir"
        )
