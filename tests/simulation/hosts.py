"""Hosts: a disk, and whatever process runs on it now."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from penstock_controller.quorum.files import DamagedFile
from penstock_core.limits import FEATURE_LEVEL
from simulation.controller_host import ControllerProcess
from simulation.gateway_host import GatewayProcess
from simulation.node_host import NodeProcess
from simulation.process import Process
from support.simulated_fs import DISK_BYTES, SimulatedFile, SimulatedFileSystem, keep_random, keep_synced

if TYPE_CHECKING:
    from simulation.world import World


RESIGN_US = 600_000
"""What a controller takes to hand leadership on."""


class Host:
    """A machine. `kind` is c (controller), n (storage node) or g (gateway)."""

    def __init__(self, world: World, kind: str, number: int) -> None:
        self.world = world
        self.kind = kind
        self.number = number
        self.name = f"{kind}{number}"
        self.process: Any = None
        self.is_powered = True
        self.directory_id = world.rng.randbytes(16)
        self.disk_fault = ""
        """"full" or "broken" while it is."""
        self.is_rotten = False
        self.wall_offset_ms = 0
        self.is_wiped = False
        """A controller that waits to be admitted again."""
        self.is_spare = False
        """A storage node's process is to be one: its slot was retired."""
        operator = world.operator
        self.rack = "" if operator is None or kind != "n" else operator.rack_of(number)
        self.disk_bytes = None if operator is None or kind != "n" else operator.disk_bytes
        """Of a small disk."""
        self.feature_level = FEATURE_LEVEL if operator is None else operator.first_level_of(kind)
        """What the build that runs here understands."""
        world.disks.by_host[self.name] = self._new_disk()

    def _new_disk(self) -> SimulatedFileSystem:
        fs = SimulatedFileSystem(self.world.rng)
        fs.cold_chance = 0.05
        fs.short_write_chance = 0.02
        self._make_small(fs)
        return fs

    def _make_small(self, fs: SimulatedFileSystem) -> None:
        fs.space_bytes = None
        if self.disk_bytes is not None:
            fs.total_bytes = self.disk_bytes
            fs.space_bytes = max(0, self.disk_bytes - fs.used_bytes())

    def used_bytes(self) -> int:
        """What files take."""
        return self.fs.used_bytes()

    def enlarge_disk(self) -> None:
        """Room for everything."""
        self.disk_bytes = None
        self.fs.total_bytes = DISK_BYTES
        if not self.disk_fault:
            self.fs.space_bytes = None

    @property
    def fs(self) -> SimulatedFileSystem:
        return self.world.disks.by_host[self.name]

    @property
    def is_up(self) -> bool:
        return self.process is not None and self.process.is_up

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.is_running

    def end_gently(self, patience_us: int) -> bool:
        """SIGTERM, and SIGKILL when that has not ended it in time. False when nothing runs here."""
        process = self.process
        if process is None or not process.is_running:
            return False
        if self.kind == "n":
            process.request_stop()
        elif self.kind == "c":
            process.resign()
            patience_us = min(patience_us, RESIGN_US)
        else:
            patience_us = 0

        def enough() -> None:
            if self.process is process:
                self.kill()

        self.world.scheduler.after(patience_us, enough)
        return True

    # --- start

    def start(self) -> None:
        """Start the program, unless it runs."""
        if self.process is not None:
            return
        self.is_powered = True
        world = self.world
        world.network.disturb(self.name)
        world.say(self.name, "starts")
        process: Process
        if self.kind == "c":
            controller = ControllerProcess(world, self.number, self.directory_id)
            self.process = controller
            try:
                controller.start()
            except DamagedFile as error:
                self._on_damaged(error)
                return
            except OSError as error:
                self._on_start_error(error)
                return
        elif self.kind == "n":
            process = NodeProcess(world, self.number)
            self.process = process
            process.start()
        else:
            process = GatewayProcess(world, self.number)
            self.process = process
            process.start()

    def start_later(self, delay_us: int) -> None:
        """As a supervisor does."""
        self.world.scheduler.after(delay_us, self.start)

    def _on_start_error(self, error: OSError) -> None:
        self.process.end(silently=False)
        self.process = None
        if not self.disk_fault:
            self.world.checker.fail("no unexpected failure", f"{self.name} cannot start: {error!r}")
        self.start_later(1_000_000)

    def _on_damaged(self, error: DamagedFile) -> None:
        """It refuses its files: wipe them and join anew."""
        world = self.world
        self.process.end(silently=False)
        self.process = None
        world.say(self.name, f"refuses its files: {error}")
        if not self.is_rotten:
            world.checker.fail("files survive crashes", f"{self.name} refuses its files: {error}")
        world.counts["damaged files refused"] += 1
        self.wipe()
        self.start_later(500_000)

    # --- ends

    def kill(self) -> None:
        """SIGKILL: what was written stays, flushed or not."""
        if self.process is None:
            return
        self.world.say(self.name, "is killed")
        if self.kind == "n":
            self.world.excuse_unflushed(self, power=False)
        self._end(silently=False)
        self._reopen(self.fs.restart())

    def cut_power(self, *, strict: bool = False) -> None:
        """What was not flushed may be gone, whole or in part."""
        world = self.world
        world.say(self.name, "loses power")
        if self.kind == "n":
            world.excuse_unflushed(self, power=True)
        if self.process is not None:
            self._end(silently=True)
        rng = world.rng
        content = keep_synced if strict else keep_random(rng)
        self._reopen(self.fs.crash(content, keep_names=lambda count: 0 if strict else rng.randint(0, count)))
        self.is_powered = False

    def _end(self, *, silently: bool) -> None:
        process, self.process = self.process, None
        for pipe in list(self.world.network.pipes):
            for end in (0, 1):
                if pipe.ends[end] == self.name and silently:
                    pipe.vanish(end)
                elif pipe.ends[end] == self.name:
                    pipe.close(end, "reset by peer")
        if self.kind == "c":
            process.end(silently=silently)
        else:
            process.end()

    def _reopen(self, fs: SimulatedFileSystem) -> None:
        fs.cold_chance, fs.short_write_chance = 0.05, 0.02
        self._make_small(fs)
        self.world.disks.by_host[self.name] = fs
        if self.disk_fault == "full":
            fs.space_bytes = 0
        elif self.disk_fault == "broken":
            fs.fail_on = _broken

    def ended(self) -> None:
        """The process came to its own end."""
        if self.process is not None:
            self.kill()

    # --- disks

    def wipe(self) -> None:
        """A new, empty disk."""
        self.world.disks.by_host[self.name] = self._new_disk()
        self.directory_id = self.world.rng.randbytes(16)
        self.world.cluster_ids.pop(self.name, None)
        self.is_rotten = False
        self.is_wiped = True
        self.world.counts["disks replaced"] += 1

    def replace_disk(self) -> None:
        """A storage node's disk is a new, empty one."""
        self.world.disks.by_host[self.name] = self._new_disk()
        self.world.counts["disks replaced"] += 1

    def insert_disk(self, fs: SimulatedFileSystem) -> None:
        """A storage node's disk is one that was in use before. Nothing runs."""
        self._make_small(fs)
        self.world.disks.by_host[self.name] = fs

    def fill(self) -> None:
        self.disk_fault = "full"
        self.fs.space_bytes = self.world.rng.randrange(600)

    def break_disk(self) -> None:
        self.disk_fault = "broken"
        self.fs.fail_on = _broken

    def mend_disk(self) -> None:
        """It is good again. What a failed flush left in the cache may be gone."""
        fault, self.disk_fault = self.disk_fault, ""
        self._make_small(self.fs)
        self.fs.fail_on = _works
        if fault == "broken":
            self.cut_power()
            self.start_later(200_000)

    def rot(self) -> bool:
        """Flip one bit of a controller's file. False when there is none."""
        fs = self.fs
        rng = self.world.rng
        files: list[SimulatedFile] = []
        for name in ("raft-journal", "raft-snapshot", "raft-meta"):
            path = f"/{self.name}/{name}"
            if fs.exists(path) and fs.path_size(path) > 40:
                node = fs._find(path)
                if isinstance(node, SimulatedFile):
                    files.append(node)
        if not files:
            return False
        file = rng.choice(files)
        at = rng.randrange(len(file.data))
        file.data[at] ^= 1 << rng.randrange(8)
        file.synced = bytes(file.data)
        file.pending.clear()
        self.is_rotten = True
        return True


def _broken(call: str, path: str) -> OSError | None:
    if call in ("fdatasync", "sync_filesystem"):
        return OSError(errno.EIO, "injected", path)
    return None


def _works(call: str, path: str) -> OSError | None:
    del call, path
    return None
