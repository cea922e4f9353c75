"""What goes wrong, and when: drawn from the seed, each fault ends by itself after a while.

Faults overlap. What is bounded: at most one controller at a time may be without its old disk
(a quorum that lost two of three disks has lost acknowledged metadata, by any protocol).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulation.disk_pool import SimDiskPool
from simulation.hosts import Host
from simulation.settings import RUN_US

if TYPE_CHECKING:
    from simulation.world import World

S = 1_000_000


class Faults:
    """Injects until `RUN_US`."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        table: list[tuple[int, str, Callable[[], bool]]] = [
            (10, "node killed", lambda: self._kill("n")),
            (6, "node power cut", lambda: self._cut_power("n")),
            (4, "controller killed", lambda: self._kill("c")),
            (4, "controller power cut", lambda: self._cut_power("c")),
            (2, "gateway killed", lambda: self._kill("g")),
            (5, "process stopped (SIGSTOP)", self._pause),
            (4, "node ended (SIGTERM)", self._stop_node),
            (2, "controller ended (SIGTERM)", self._stop_controller),
            (8, "host cut off", self._isolate),
            (6, "host cut off, one way", self._isolate_one_way),
            (6, "two hosts apart", self._part_pair),
            (3, "network in two halves", self._halves),
            (3, "controllers apart", self._part_controllers),
            (4, "disk slow", self._slow_disk),
            (1, "all disks slow", self._slow_disks),
            (3, "disk hung", self._hang_disk),
            (2, "disk full", self._fill_disk),
            (2, "disk broken (EIO)", self._break_disk),
            (6, "crash at a disk operation", self._crash_point),
            (2, "wall clock stepped", self._step_clock),
            (1, "all nodes killed", lambda: self._kill_all("n")),
            (1, "everything killed", lambda: self._kill_all("cn")),
            (1, "power cut of everything", self._cut_all),
            (1, "power cut after a commit", self._cut_after_commit),
            (1, "controller disk lost", self._lose_controller_disk),
            (1, "bit rot in a controller's files", self._rot),
            (0, "active controller stopped", self._pause_active),
            (0, "two nodes apart for long", self._part_nodes),
            (0, "node cut off for long", self._isolate_node),
            (0, "disk full for long", self._fill_disk_for_long),
        ]
        # Each seed has a taste of its own.
        favoured = world.settings.favoured
        self._table = [
            ((weight and weight * self._rng.choice((0, 1, 1, 3))) + 40 * favoured.count(name), name, run)
            for weight, name, run in table
        ]
        self._total = sum(weight for weight, _, _ in self._table)

    def start(self) -> None:
        """The first fault comes when the cluster has had a moment."""
        self._world.scheduler.after(int(4 * S + self._rng.expovariate(1) * S), self._next)

    def _next(self) -> None:
        world, rng = self._world, self._rng
        if world.scheduler.now_us >= RUN_US - S:
            return
        if self._total:
            pick = rng.random() * self._total
            for weight, name, run in self._table:
                pick -= weight
                if pick < 0:
                    world.say("FAULT", name)
                    if run():
                        world.injected[name] += 1
                    break
        world.scheduler.after(int(rng.expovariate(1) * world.settings.fault_interval_us) + 1, self._next)

    # --- helpers

    def _while_us(self, most_s: float) -> int:
        """How long a fault lasts: short ones are common."""
        return int((0.05 + self._rng.random() ** 2 * most_s) * S)

    def _pick(self, kinds: str) -> Host | None:
        up = [h for h in self._world.hosts if h.kind in kinds and h.is_running]
        return self._rng.choice(up) if up else None

    def _later(self, delay_us: int, call: Callable[[], object]) -> None:
        self._world.scheduler.after(delay_us, call)

    # --- processes

    def _kill(self, kind: str) -> bool:
        host = self._pick(kind)
        if host is None:
            return False
        host.kill()
        host.start_later(self._while_us(6))
        return True

    def _cut_power(self, kind: str) -> bool:
        host = self._pick(kind)
        if host is None:
            return False
        host.cut_power(strict=self._rng.random() < 0.3)
        host.start_later(self._while_us(6))
        return True

    def _kill_all(self, kinds: str) -> bool:
        for host in self._world.hosts:
            if host.kind in kinds and host.is_up:
                host.kill()
                host.start_later(self._while_us(4))
        return True

    def _cut_all(self) -> bool:
        for host in self._world.hosts:
            if host.kind in "cn":
                host.cut_power(strict=self._rng.random() < 0.5)
                host.start_later(self._while_us(4))
        return True

    def _cut_after_commit(self) -> bool:
        """All nodes lose power just when a leader has declared something committed."""
        world = self._world

        def cut() -> None:
            for host in world.hosts:
                if host.kind == "n" and host.is_up:
                    host.cut_power(strict=self._rng.random() < 0.7)
                    host.start_later(self._while_us(3))

        def committed() -> None:
            world.scheduler.after(int(self._rng.random() ** 2 * 20_000), cut)

        world.checker.on_commit = committed
        return True

    def _pause(self) -> bool:
        host = self._pick("cnng")
        return host is not None and self._pause_for(host, 7)

    def _pause_active(self) -> bool:
        """About as long as the others wait before they elect."""
        for host in self._world.hosts:
            if host.kind == "c" and host.is_running and host.process.core.active:
                return self._pause_for(host, 3)
        return False

    def _pause_for(self, host: Host, most_s: float) -> bool:
        process = host.process
        process.pause()

        def resume() -> None:
            if process.is_up and process.is_paused:
                process.resume()

        self._later(self._while_us(most_s), resume)
        return True

    def _stop_node(self) -> bool:
        host = self._pick("n")
        if host is None:
            return False
        process = host.process
        process.request_stop()

        def enough() -> None:
            if host.process is process:
                host.kill()

        self._later(12 * S, enough)
        host.start_later(12 * S + self._while_us(3))
        return True

    def _stop_controller(self) -> bool:
        host = self._pick("c")
        if host is None:
            return False
        process = host.process
        process.resign()

        def end() -> None:
            if host.process is process:
                host.kill()

        self._later(600_000, end)
        host.start_later(600_000 + self._while_us(4))
        return True

    def _crash_point(self) -> bool:
        host = self._pick("cnn")
        if host is None:
            return False
        host.fs.crash_countdown = self._rng.randrange(40)
        return True

    # --- network

    def _block(self, ways: list[tuple[str, str]], most_s: float) -> bool:
        network = self._world.network
        for source, target in ways:
            network.block(source, target)
        return self._heal_later(ways, self._while_us(most_s))

    def _block_for(self, ways: list[tuple[str, str]], us: int) -> bool:
        for source, target in ways:
            self._world.network.block(source, target)
        return self._heal_later(ways, us)

    def _heal_later(self, ways: list[tuple[str, str]], us: int) -> bool:
        network = self._world.network

        def heal() -> None:
            for source, target in ways:
                network.unblock(source, target)

        self._later(us, heal)
        return True

    def _isolate(self) -> bool:
        host = self._pick("cnng")
        if host is None:
            return False
        others = [h.name for h in self._world.hosts if h is not host]
        return self._block([(host.name, o) for o in others] + [(o, host.name) for o in others], 8)

    def _isolate_one_way(self) -> bool:
        host = self._pick("cnng")
        if host is None:
            return False
        others = [h.name for h in self._world.hosts if h is not host]
        if self._rng.random() < 0.5:
            return self._block([(host.name, o) for o in others], 8)
        return self._block([(o, host.name) for o in others], 8)

    def _part_pair(self) -> bool:
        one, other = self._rng.sample(self._world.hosts, 2)
        ways = [(one.name, other.name)]
        if self._rng.random() < 0.6:
            ways.append((other.name, one.name))
        return self._block(ways, 12)

    def _part_nodes(self) -> bool:
        """Long enough for their connections to be given up."""
        one, other = self._rng.sample([h.name for h in self._world.hosts if h.kind == "n"], 2)
        return self._block_for([(one, other), (other, one)], self._long_us())

    def _isolate_node(self) -> bool:
        """Long enough for others to take its place."""
        host = self._pick("n")
        if host is None:
            return False
        others = [h.name for h in self._world.hosts if h is not host]
        return self._block_for(
            [(host.name, o) for o in others] + [(o, host.name) for o in others], self._long_us()
        )

    def _long_us(self) -> int:
        return int((4.2 + 3.3 * self._rng.random()) * S)

    def _halves(self) -> bool:
        left = [h.name for h in self._world.hosts if self._rng.random() < 0.5]
        right = [h.name for h in self._world.hosts if h.name not in left]
        ways = [(a, b) for a in left for b in right] + [(b, a) for a in left for b in right]
        return bool(ways) and self._block(ways, 6)

    def _part_controllers(self) -> bool:
        """Most of the controllers do not hear the rest, mostly the active one and those with it."""
        hosts = [h for h in self._world.hosts if h.kind == "c"]
        self._rng.shuffle(hosts)
        if self._rng.random() < 0.7:
            hosts.sort(key=lambda h: not (h.is_up and h.process.core.active))
        few = hosts[: len(hosts) // 2]
        ways = [(a.name, b.name) for a in few for b in hosts if b not in few]
        return self._block(ways + [(b, a) for a, b in ways], 4)

    # --- disks and clocks

    def _slow_disks(self) -> bool:
        pools = [h.process.pool for h in self._world.hosts if h.kind == "n" and h.is_running]
        for pool in pools:
            if pool is not None:
                self._slow_down(pool, 3)
        return bool(pools)

    def _slow_down(self, pool: SimDiskPool, most_s: float) -> None:
        pool.slowness = self._rng.choice((10.0, 50.0, 300.0))

        def mend() -> None:
            pool.slowness = 1.0

        self._later(self._while_us(most_s), mend)

    def _slow_disk(self) -> bool:
        host = self._pick("n")
        if host is None or host.process.pool is None:
            return False
        self._slow_down(host.process.pool, 6)
        return True

    def _hang_disk(self) -> bool:
        host = self._pick("n")
        if host is None or host.process.pool is None:
            return False
        pool = host.process.pool
        pool.hang()
        self._later(self._while_us(8), pool.unhang)
        return True

    def _fill_disk(self) -> bool:
        host = self._pick("nnc")
        if host is None or host.disk_fault:
            return False
        host.fill()
        self._later(self._while_us(6), host.mend_disk)
        return True

    def _fill_disk_for_long(self) -> bool:
        """Long enough for all that others do about it."""
        host = self._pick("n")
        if host is None or host.disk_fault:
            return False
        host.fill()
        self._later(2 * self._long_us(), host.mend_disk)
        return True

    def _break_disk(self) -> bool:
        host = self._pick("n")
        if host is None or host.disk_fault:
            return False
        host.break_disk()
        self._later(self._while_us(5), host.mend_disk)
        return True

    def _step_clock(self) -> bool:
        host = self._rng.choice(self._world.hosts)
        # Within an hour of the clients', or `message.timestamp.after.max.ms` refuses their records for good.
        host.wall_offset_ms = self._rng.randrange(-3_500_000, 3_500_000)
        return True

    def _may_lose_controller_disk(self) -> Host | None:
        """A controller whose loss leaves a majority that knows everything."""
        controllers = [h for h in self._world.hosts if h.kind == "c"]
        if any(h.is_wiped or h.is_rotten for h in controllers):
            return None
        host = self._pick("c")
        others_joined = all(h.is_up and h.process.raft._memory.joined for h in controllers if h is not host)
        return host if others_joined else None

    def _lose_controller_disk(self) -> bool:
        host = self._may_lose_controller_disk()
        if host is None:
            return False
        host.kill()
        host.wipe()
        host.start_later(self._while_us(3))
        return True

    def _rot(self) -> bool:
        host = self._may_lose_controller_disk()
        if host is None:
            return False
        host.kill()
        rotten = host.rot()
        host.start_later(self._while_us(2))
        return rotten
