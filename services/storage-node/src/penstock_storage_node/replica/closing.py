"""How a node that stops closes its logs."""

from __future__ import annotations

import asyncio

from penstock_core.errors import PenstockError
from penstock_runtime.logs import Log
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import LogDirectory
from penstock_storage_node.replica.background import BackgroundJobs
from penstock_storage_node.replica.manager import ReplicaManager


async def close_logs(
    manager: ReplicaManager, directory: LogDirectory, pool: DiskPool, background: BackgroundJobs, log: Log
) -> bool:
    """Write and flush everything; True when all of it worked, and the next start may trust it."""
    if directory.has_unreported:
        # Nothing was written since the start. A clean stop now would make the next registration
        # say that nothing was lost, so the disk stays as the crash left it.
        for unclaimed in manager.take_unclaimed():
            unclaimed.close(clean=False)
        return False
    partitions = list(manager.registry.partitions.values())
    for partition in partitions:
        partition.replica.step_down()
    closing = [p.exclusive(lambda log=p.log: log.close(True)) for p in partitions]  # type: ignore[misc]
    closing += [
        asyncio.ensure_future(pool.run(lambda log=unclaimed: log.close(True)))  # type: ignore[misc]
        for unclaimed in manager.take_unclaimed()
    ]
    results = await asyncio.gather(*closing, return_exceptions=True)
    failed = [r for r in results if isinstance(r, BaseException)]
    for error in failed:
        log.error("log not closed cleanly", reason=str(error))
    try:
        await background.write_checkpoints()
    except (OSError, PenstockError) as e:
        log.error("checkpoints not written", reason=str(e))
        return False
    return not failed and not manager.health.failed
