"""Disks that are full, fail, are slow, are gone or lie; and wall clocks that jump."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path

from chaos.cluster import Needs
from chaos.run import TOPIC, Run
from chaos.scenario import scenario

SHIM = Needs(shim=True)
JUMP_MAX_MS = 50 * 60_000
"""Below message.timestamp.after.max.ms: a server an hour late refuses a client's timestamps, and rightly."""
SLOW_FLUSH_MS = 200


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(65_536)):
            pass
    with path.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(b"\0"):
            pass


def _disk_full(run: Run, victim: str) -> None:
    filler = run.cluster.directory / victim / "filler"
    run.fault()
    _fill(filler)
    run.change_metadata()
    run.hold()
    run.heal()
    filler.unlink()
    _bring_back(run, victim)


def _bring_back(run: Run, victim: str) -> None:
    """A process may refuse its disk for good: an operator starts it again."""
    if run.cluster.is_running(victim):
        run.note(f"{victim} lived through it")
    else:
        run.note(f"{victim} had ended: {run.cluster.last_words(victim, 1)[-160:]}")
        run.cluster.start(victim)


@scenario("leader-disk-full", "a leader's disk has no space left", Needs(small_disk=("node-1",)))
def leader_disk_full(run: Run) -> None:
    _disk_full(run, "node-1")


@scenario("follower-disk-full", "a follower's disk has no space left", Needs(small_disk=("node-3",)))
def follower_disk_full(run: Run) -> None:
    _disk_full(run, "node-3")


@scenario(
    "controller-disk-full", "a controller's disk has no space left", Needs(small_disk=("controller-1",))
)
def controller_disk_full(run: Run) -> None:
    _disk_full(run, "controller-1")


def _flush_errors(run: Run, victim: str) -> None:
    cluster = run.cluster
    pid = cluster.pid(victim)
    run.fault()
    cluster.shim.flush_errno(pid, errno.EIO)
    run.change_metadata()
    run.hold()
    run.note(f"{cluster.shim.flushes_hit(pid)} flushes failed")
    cluster.shim.flush_errno(pid, 0)
    run.heal()
    # A disk that failed once is not trusted again by the same process (fsync tells an error once).
    if cluster.is_running(victim):
        cluster.kill(victim)
    else:
        run.note(f"{victim} had ended: {cluster.last_words(victim, 1)[-160:]}")
    cluster.start(victim)


@scenario("leader-flush-errors", "every flush of a leader fails with EIO; then it is started again", SHIM)
def leader_flush_errors(run: Run) -> None:
    _flush_errors(run, run.leader())


@scenario("follower-flush-errors", "every flush of a follower fails with EIO; then it is started again", SHIM)
def follower_flush_errors(run: Run) -> None:
    _flush_errors(run, run.follower())


@scenario("controller-flush-errors", "every flush of the active controller fails with EIO", SHIM)
def controller_flush_errors(run: Run) -> None:
    _flush_errors(run, run.controller_leader())


def _slow_flushes(run: Run, names: list[str]) -> None:
    shim = run.cluster.shim
    run.fault()
    for name in names:
        shim.flush_delay_ms(run.cluster.pid(name), SLOW_FLUSH_MS)
    run.hold()
    run.heal()
    for name in names:
        shim.flush_delay_ms(run.cluster.pid(name), 0)


@scenario("leader-slow-flushes", f"every flush of a leader takes {SLOW_FLUSH_MS} ms longer", SHIM)
def leader_slow_flushes(run: Run) -> None:
    _slow_flushes(run, [run.leader()])


@scenario("all-slow-flushes", f"every flush of every process takes {SLOW_FLUSH_MS} ms longer", SHIM)
def all_slow_flushes(run: Run) -> None:
    _slow_flushes(run, run.cluster.names)


@scenario("leader-clock-jumps", "a leader's wall clock goes 50 minutes ahead, then 50 minutes back", SHIM)
def leader_clock_jumps(run: Run) -> None:
    _clock_jumps(run, {run.leader(): JUMP_MAX_MS})


@scenario("all-clocks-jump", "every process' wall clock jumps forth and back, each by another time", SHIM)
def all_clocks_jump(run: Run) -> None:
    _clock_jumps(run, {name: run.dice.randrange(1_000, JUMP_MAX_MS) for name in run.cluster.names})


def _clock_jumps(run: Run, offsets_ms: dict[str, int]) -> None:
    shim = run.cluster.shim
    run.fault()
    for direction in (1, -1):
        for name, offset_ms in offsets_ms.items():
            shim.wall_offset_ms(run.cluster.pid(name), direction * offset_ms)
        run.hold(0.5)
    run.heal()
    for name in offsets_ms:
        shim.wall_offset_ms(run.cluster.pid(name), 0)


@scenario("follower-disk-wiped", "a follower is killed and comes back with an empty disk")
def follower_disk_wiped(run: Run) -> None:
    _wiped(run, run.follower())


@scenario("leader-disk-wiped", "a leader is killed and comes back with an empty disk")
def leader_disk_wiped(run: Run) -> None:
    _wiped(run, run.leader())


@scenario("controller-disk-wiped", "a controller is killed and comes back with an empty disk")
def controller_disk_wiped(run: Run) -> None:
    victim = run.controller_follower()
    _wiped(run, victim, ready=False)
    # It does not vote, and is not ready, until an operator has said so.
    run.cluster.admit(victim)
    run.cluster.wait_ready(victim)


def _wiped(run: Run, victim: str, *, ready: bool = True) -> None:
    run.fault()
    run.cluster.kill(victim)
    run.cluster.wipe(victim)
    run.hold()
    run.heal()
    run.cluster.start(victim, ready=ready)


@scenario("follower-bit-flip", "a bit anywhere in a killed follower's log flips before it comes back")
def follower_bit_flip(run: Run) -> None:
    _bit_flip(run, run.follower())


@scenario("leader-bit-flip", "a bit anywhere in a killed leader's log flips before it comes back")
def leader_bit_flip(run: Run) -> None:
    _bit_flip(run, run.leader())


def _bit_flip(run: Run, victim: str) -> None:
    """One bit of each partition's active segment, in what was checkpointed or in what came after it."""
    cluster = run.cluster
    run.fault()
    cluster.kill(victim)
    for segment in sorted(cluster.data_dir(victim).glob(f"{TOPIC}-*/*.log")):
        size = segment.stat().st_size
        if not size:
            continue
        position = run.dice.randrange(size)
        with segment.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ (1 << run.dice.randrange(8))]))
        run.note(f"{victim} {segment.parent.name}: a bit of byte {position} of {size}")
    run.hold()
    run.heal()
    cluster.start(victim)
