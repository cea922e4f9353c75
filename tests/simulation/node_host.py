"""One storage node: the shipped role class, from opening its directory to its clean end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_core.errors import InvariantBroken
from penstock_storage_node.role import StorageNode
from penstock_storage_node.settings import StorageNodeSettings
from simulation.controller_host import GRPC_PORT
from simulation.disk_pool import SimDiskPool
from simulation.process import Process
from support.simulated_fs import SimulatedFileSystem

if TYPE_CHECKING:
    from simulation.world import World

NODE_PORT = 9000


class NodeProcess(Process):
    """A run of the storage node on host `n<id>`."""

    def __init__(self, world: World, node_id: int) -> None:
        super().__init__(world, f"n{node_id}")
        self.node_id = node_id
        self.pool: SimDiskPool | None = None
        self.role: Any = None
        self.group_flush = world.settings.group_flush
        self.has_ended = False

    @property
    def fs(self) -> SimulatedFileSystem:
        """The disk as this process has found it."""
        return self.world.disks.by_host[self.name]

    @property
    def manager(self) -> Any:
        """The replica manager, None while the role isn't built."""
        return getattr(self.role, "_manager", None)

    def start(self) -> None:
        self.loop.after_run = self._validate
        self.spawn(self._run())

    def _validate(self) -> None:
        """What the node keeps twice is the same, after every event."""
        manager = self.manager
        if manager is not None:
            try:
                manager.validate()
            except InvariantBroken as e:
                self.world.checker.fail("what is counted is there", f"{self.name}: {e}")

    async def _run(self) -> None:
        settings = self.world.settings
        self.role = StorageNode(
            StorageNodeSettings.model_construct(
                **{
                    **_DEFAULTS,
                    "node_id": self.node_id,
                    "data_dir": Path("/data"),
                    "grpc_bind": f"{self.name}:{NODE_PORT}",
                    "http_bind": "",
                    "controllers": [f"{i}@c{i}:{GRPC_PORT}" for i in self.world.controller_ids],
                    "replica_lag_time_max_ms": settings.lag_max_ms,
                    "checkpoint_interval_ms": settings.checkpoint_ms,
                    "flush_interval_ms": settings.flush_interval_ms,
                    "retention_check_interval_ms": settings.retention_check_ms,
                    "group_flush": settings.group_flush,
                    **self.world.log_life.node_settings,
                    **(self.world.groups.node_settings() if self.world.groups else {}),
                }
            ),
            self.lifecycle,
        )
        await self.role.run()
        self.has_ended = True
        self.world.on_ended(self)

    def request_stop(self) -> None:
        """SIGTERM."""
        if self.is_up:
            self.loop.call_soon(self.lifecycle.request_stop, "TERM")

    def end(self) -> None:
        """SIGKILL."""
        self.kill()
        server = self.world.servers.get(f"{self.name}:{NODE_PORT}")
        if server is not None and server.process is self:
            server.stop()
        self.drop_connections()


_DEFAULTS: dict[str, Any] = StorageNodeSettings(controllers=["c1:1"]).model_dump()  # type: ignore[call-arg]
