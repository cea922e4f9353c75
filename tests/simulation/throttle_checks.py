"""What a node is fed for rebuilt replicas keeps to the rate that operations have for good, whoever feeds it.

The rate is read off operations as they are applied, the bytes off the node's own counter, once a second. Any stretch of
seconds in which an operation ran with one rate, and which the node has lived through knowing it, has to keep to it.
Beyond the rate may come: a tenth of a second's worth, for what was not used before; a frame of each other node, which
waited for its turn when the stretch began; and what is let through because acks wait for it, which the node pays
afterwards.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Final

from penstock_proto.v1 import metadata_pb2 as pb

if TYPE_CHECKING:
    from simulation.hosts import Host
    from simulation.world import World

KEPT_S: Final = 30
UNUSED_S: Final = 0.1
FRAME_BYTES_MAX: Final = 800
"""A batch, which goes whole though a message of that rate is smaller."""


class ThrottleChecks:
    """Of one run with an operator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rates: dict[int, tuple[int, int]] = {}
        """Of operations that run with a fixed rate: that, and the version since when."""
        self._let_through: Counter[str] = Counter()
        self._samples: dict[str, tuple[bytes, deque[tuple[int, int, int]]]] = {}
        """Of each host: whose process, and (when, bytes that the rate had to allow, version it knew) as of then."""

    def changed(self, record: pb.OperationRecord, version: int) -> None:
        """An operation is another from this version on."""
        moves = record.state == pb.OPERATION_STATE_RUNNING and record.moves_total > 0
        rate = record.throttle.bytes_per_s if moves else 0
        if self._rates.get(record.operation_id, (0, 0))[0] != rate:
            self._rates[record.operation_id] = rate, version
        if not rate:
            self._rates.pop(record.operation_id, None)

    def let_through(self, host: str, size_bytes: int) -> None:
        """A node took so much before its turn."""
        self._let_through[host] += size_bytes

    def look(self) -> None:
        """At all nodes."""
        for host in self._world.hosts:
            if host.kind == "n":
                self._look_at(host)

    def _look_at(self, host: Host) -> None:
        process = host.process
        if not self._rates or not host.is_running or process.manager is None:
            self._samples.pop(host.name, None)
            return
        boot_id, samples = self._samples.get(host.name, (b"", deque()))
        if boot_id != process.boot_id:
            self._let_through[host.name] = 0
            samples = deque(maxlen=KEPT_S)
            self._samples[host.name] = process.boot_id, samples
        now_us = self._world.scheduler.now_us
        taken = process.manager.metrics.catch_up_in_bytes - self._let_through[host.name]
        settings = self._world.settings
        frames = (settings.nodes - 1) * max(settings.throttled_message_bytes, FRAME_BYTES_MAX)
        for rate, since_version in self._rates.values():
            for since_us, before, version in samples:
                allowed = rate * ((now_us - since_us) / 1_000_000 + UNUSED_S) + frames
                if version >= since_version and taken - before > allowed:
                    self._world.checker.fail(
                        "a node gets no more than its rate",
                        f"{host.name}: {taken - before} bytes in {(now_us - since_us) / 1e6:.1f} s at {rate} bytes/s",
                    )
        samples.append((now_us, taken, process.manager.registry.image.version))
