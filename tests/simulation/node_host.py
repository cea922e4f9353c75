"""One storage node: the shipped role class, from opening its directory to its clean end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock_core.errors import InvariantBroken
from penstock_core.metadata.image import Endpoint
from penstock_storage_node.disk.group_flush import GroupFlush
from penstock_storage_node.ports import NodeParts, NodePorts
from penstock_storage_node.role import StorageNode
from penstock_storage_node.settings import StorageNodeSettings
from penstock_storage_node.transactions.host import TransactionHost
from simulation.checked import (
    CheckedControllerClient,
    CheckedInlet,
    CheckedLog,
    CheckedRegistration,
    CheckedReplica,
)
from simulation.cleaner_process import SimWorker
from simulation.controller_host import GRPC_PORT
from simulation.disk_pool import SimDiskPool
from simulation.group_checks import CheckedGroupHost
from simulation.groups import GROUP_TICK_MS
from simulation.process import Process
from simulation.rpc import RunningServer, SimChannelPool, SimServer
from simulation.txn_checks import CheckedOffsetsHost, CheckedTransactionHost
from support.simulated_fs import SimulatedFileSystem

if TYPE_CHECKING:
    from simulation.world import World

NODE_PORT = 9000


class NoHttp:
    """Nobody scrapes."""

    def __init__(self, *_: object, **__: object) -> None:
        return None

    async def start(self) -> Endpoint:
        return Endpoint("", "", 0)

    async def stop(self) -> None:
        return None


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
                    **self._slots(),
                    "grpc_bind": f"{self.name}:{NODE_PORT}",
                    "http_bind": "",
                    "rack": self.world.host_of[self.name].rack,
                    "controllers": [f"{i}@c{i}:{GRPC_PORT}" for i in self.world.controller_ids],
                    "replica_lag_time_max_ms": settings.lag_max_ms,
                    "checkpoint_interval_ms": settings.checkpoint_ms,
                    "flush_interval_ms": settings.flush_interval_ms,
                    "retention_check_interval_ms": settings.retention_check_ms,
                    "group_flush": settings.group_flush,
                    **self.world.log_life.node_settings,
                    **(self.world.groups.node_settings() if self.world.groups else {}),
                    **(self.world.rights.node_settings() if self.world.rights else {}),
                }
            ),
            self.lifecycle,
            self._ports(),
        )
        await self.role.run()
        self.has_ended = True
        self.world.on_ended(self)

    def _ports(self) -> NodePorts:
        groups = self.world.groups
        ports: dict[str, Any] = {
            "clocks": self.clocks,
            "new_rng": self.new_rng,
            "new_uuid": self.new_uuid,
            "serve": self._serve,
            "http": NoHttp,
            "freeze": lambda: None,
            "channels": lambda *_, **__: SimChannelPool(self),
            "controllers": CheckedControllerClient,
            "fs": lambda: self.fs,
            "pool": self._make_pool,
            "group_flush": self._open_group_flush,
            "worker": lambda: SimWorker(self),
            "parts": NodeParts(
                log=CheckedLog,
                replica=CheckedReplica,
                registration=CheckedRegistration,
                groups=CheckedOffsetsHost if groups is None else CheckedGroupHost,
                transactions=TransactionHost if self.world.transactions is None else CheckedTransactionHost,
                inlet=CheckedInlet,
            ),
            # As `ControllerProcess` has it; groups have a short tick where there are any.
            "tick_ms": 200,
            "group_tick_ms": 2_000 if groups is None else GROUP_TICK_MS,
            "pieces": self.world.pieces,
            "near_bytes": self.world.settings.near_bytes,
            "throttled_message_bytes_min": self.world.settings.throttled_message_bytes,
        }
        return NodePorts(**ports)

    def _slots(self) -> dict[str, Any]:
        """Settings of a node whose directory is a slot."""
        operator = self.world.operator
        if operator is None or not operator.has_slots:
            return {}
        return {"slots_dir": Path("/slots"), "spare": self.world.host_of[self.name].is_spare}

    def _make_pool(self, _threads: int) -> SimDiskPool:
        self.pool = SimDiskPool(self)
        return self.pool

    def _open_group_flush(self, fs: Any, path: str) -> tuple[GroupFlush | None, str]:
        return (GroupFlush(fs, path), "") if self.group_flush else (None, "not in this seed")

    async def _serve(
        self, bind: str, add_services: Callable[[Any], None], **_: object
    ) -> tuple[RunningServer, Endpoint]:
        server = SimServer(self, bind)
        add_services(server)
        return RunningServer(server), Endpoint("", self.name, NODE_PORT)

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
