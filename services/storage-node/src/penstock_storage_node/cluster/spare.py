"""A process without a slot of its own: it waits until that of a node comes free, because its process is gone.

It has no id and no data, and is not ready. What it serves meanwhile is its health, and its own metrics where anybody
may read those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock_core.errors import PenstockError
from penstock_runtime.http import HttpServer
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_storage_node.disk.pool import DiskPool
from penstock_storage_node.log import DirectoryPorts, LogDirectory
from penstock_storage_node.settings import StorageNodeSettings

LOOK_MS: Final = 1_000
REASON: Final = "spare: every node's slot is in use; this process takes the next one that comes free"


async def await_slot(
    settings: StorageNodeSettings,
    lifecycle: Lifecycle,
    pool: DiskPool,
    ports: DirectoryPorts,
    http: Callable[..., HttpServer],
    files: ListenerTlsFiles | None,
) -> LogDirectory | None:
    """A live slot, locked; None when told to stop before one came free. `files`: of the HTTP port's TLS.

    Raises StartupError when the HTTP port cannot be opened, OSError when the slots cannot be read.
    """
    slots_dir = settings.slots_dir
    assert slots_dir is not None
    door = settings.http_door
    options: dict[str, Any] = {} if files is None else {"tls": files.context}
    if door is not None:
        options["health_only"] = door.has_sasl or door.takes_certificates
        options["may_face_others"] = door.may_face_others
    server = http(settings.http_bind, lifecycle, **options)
    await server.start()
    lifecycle.set_not_ready(REASON)
    problem = ""
    try:
        while not lifecycle.stopping.is_set():
            try:
                directory = await pool.run(
                    lambda: LogDirectory.claim_live_slot(ports, slots_dir, node_id=settings.node_id)
                )
            except PenstockError as e:
                # Another slot's, which its own process will meet too: no reason to end.
                if e.message != problem:
                    lifecycle.log.warning("a slot can't be taken", reason=e.message)
                directory, problem = None, e.message
            if directory is not None:
                lifecycle.log.info(
                    "took over a slot: its process is gone",
                    path=str(directory.path),
                    node_id=directory.node_id,
                )
                lifecycle.set_not_ready("starting")
                return directory
            await _pause(lifecycle.stopping)
    finally:
        await server.stop()
    return None


async def _pause(stopping: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(LOOK_MS / 1000):
            await stopping.wait()
    except TimeoutError:
        pass
