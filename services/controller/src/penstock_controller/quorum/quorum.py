"""The quorum for the event loop: a tick thread, events out, proposals in.

All Raft work happens on one thread of its own. Its results cross to the loop as plain
immutable data through one guarded `call_soon_threadsafe` a turn. A failure on the tick
thread (an I/O error of the journal above all) is final: it is reported once and the
thread ends; a log that failed to sync is never written again by this process.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock_controller.quorum import pysyncobj_pins
from penstock_controller.quorum import snapshot as snapshot_store
from penstock_controller.quorum.commands import COMMAND_BYTES_MAX
from penstock_controller.quorum.events import QuorumConfig, QuorumEvent, QuorumMeters, Reset
from penstock_controller.quorum.files import REAL_FILES, Files
from penstock_controller.quorum.identity import PeerMemory
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.machine import Machine
from penstock_controller.quorum.peer_connection import REAL_NETWORK, PeerNetwork
from penstock_controller.quorum.raft import RaftNode
from penstock_controller.quorum.snapshot import Slicer, SnapshotStore
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata import MetadataImage

_STOP_S = 5.0
_TRANSFER_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class QuorumPorts:
    """What a quorum takes from the world around it, and a simulation gives it; None is the real thing."""

    clock_s: Callable[[], float] = pysyncobj_pins.clock_s
    """Never goes back, and is the one that PySyncObj goes by."""
    rng: random.Random | None = None
    """Spreads elections."""
    spawn: Callable[[Callable[[], None], str], None] | None = None
    """Runs a job that writes or checks a file, with a name for its thread."""
    slicer: Callable[[], Slicer] | None = None
    """Lets others run between the steps of such a job."""
    machine_class: Callable[..., Machine] | None = None
    """Takes what `Machine` takes."""
    files: Files = REAL_FILES
    network: PeerNetwork = REAL_NETWORK


REAL_QUORUM_PORTS = QuorumPorts()


class Quorum:
    """One member of the controllers' quorum, running.

    `deliver` gets lists of events on the tick thread and must only hand them over.
    `on_fatal` is called at most once, on the tick or the snapshot thread.
    """

    def __init__(
        self,
        config: QuorumConfig,
        deliver: Callable[[list[QuorumEvent]], None],
        on_fatal: Callable[[BaseException], None],
        on_warning: Callable[[str], None],
        meters: QuorumMeters | None = None,
        ports: QuorumPorts = REAL_QUORUM_PORTS,
    ) -> None:
        """Open the files and bind the port. Raises DamagedFile, WrongLibrary, PenstockError."""
        meters = meters or QuorumMeters()
        pysyncobj_pins.check_library()
        pysyncobj_pins.install_hooks()
        self._config = config
        self._on_fatal = on_fatal
        self._failed = False
        self._stopping = threading.Event()
        self._calls: deque[Callable[[], None]] = deque()
        config.directory.mkdir(parents=True, exist_ok=True)
        slicer = ports.slicer or snapshot_store.Slicer
        journal = DurableJournal(
            config.directory,
            meters.journal_sync_s,
            ports.spawn or snapshot_store.start_thread,
            lambda: slicer().breathe,
            files=ports.files,
            clock_s=ports.clock_s,
        )
        store = SnapshotStore(
            config.directory,
            lambda: self._machine.image,
            lambda error: on_warning(f"snapshot not written: {error}; tried again later"),
            meters.snapshot_s,
            spawn=ports.spawn,
            slicer=ports.slicer,
            files=ports.files,
            clock_s=ports.clock_s,
        )
        try:
            snapshot = store.load()
            if snapshot is not None:
                journal.align(snapshot.previous, snapshot.last)
            journal.check(config.controller_id)
            self._machine: Machine = (ports.machine_class or Machine)(
                snapshot.image if snapshot is not None else MetadataImage(),
                lambda event: self._raft.emit(event),
                self._fail,
            )
            self._store = store
            self._raft: RaftNode = RaftNode(
                config,
                journal,
                store,
                snapshot,
                self._machine,
                PeerMemory(config.directory, config.controller_id, config.directory_id, ports.files),
                deliver,
                meters.bad_frame,
                clock_s=ports.clock_s,
                rng=ports.rng,
                network=ports.network,
            )
        except BaseException:
            journal._destroy()
            raise
        if snapshot is not None:
            self._raft.emit(Reset(snapshot.image))
        self._thread = threading.Thread(target=self._run, name="raft", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def image(self) -> MetadataImage:
        """The newest image, readable from any thread."""
        return self._machine.image

    def propose(self, command: bytes, token: object) -> None:
        """Propose a command; a Proposal event with `token` follows, unless the leader is lost first.

        Raises PenstockError when it is too large to be one.
        """
        if len(command) > COMMAND_BYTES_MAX:
            raise PenstockError(
                ErrorCode.POLICY_VIOLATION,
                f"request makes {len(command)} bytes of metadata, the most is {COMMAND_BYTES_MAX}; split it",
            )
        self._raft.propose(command, token)

    def barrier(self, token: object) -> None:
        """Commit a no-op; APPLIED proves that this controller still leads."""
        self._raft.barrier(token)

    @property
    def journal_bytes(self) -> int:
        """Size of the log on the disk."""
        return self._raft.journal.bytes_on_disk

    @property
    def snapshot_bytes(self) -> int:
        """Size of the newest snapshot; 0: there is none."""
        return self._store.size_bytes

    @property
    def snapshot_written_s(self) -> float:
        """When it was written, in s since 1970."""
        return self._store.written_s

    @property
    def elections(self) -> int:
        """In how many elections this controller has stood since its start."""
        return self._raft.elections

    def leader_contact(self) -> tuple[int, int]:
        """Time in ms since the leader was last heard, or on the leader since a majority was; and a term, no
        older than that of who was heard.

        A leader that was paused so does not take its own old news for fresh ones. Read beside the raft thread:
        the status that it posts may be older than what it has just heard, by a flush of the journal.
        """
        raft = self._raft
        heard_at, term = raft.transport.last_append
        if raft._isLeader():
            heard_at = raft.majority_heard_at
        age_ms = max(0, int((raft.clock_s() - heard_at) * 1000))
        # Read last: terms only rise.
        return age_ms, max(term, raft.raftCurrentTerm)

    def stop(self) -> None:
        """Hand leadership over if we have it, then end the thread. Blocks; call it off the loop."""
        self._raft.resigning = True
        if self._may_transfer():
            deadline = time.monotonic() + self._config.transfer_s
            while self._may_transfer() and time.monotonic() < deadline:
                # Asked again and again: it is denied while no peer holds the whole log.
                self._calls.append(self._raft.transferLeadership)
                self._raft.wake()
                time.sleep(_TRANSFER_POLL_S)
        self._stopping.set()
        self._raft.wake()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        else:
            self._close()

    def _may_transfer(self) -> bool:
        """Whether this controller leads and enough peers are there to elect another one."""
        return (
            self._thread.is_alive()
            and self._raft._isLeader()
            and len(self._raft.transport.reachable) > len(self._config.peers) // 2
        )

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self._failed:
                while self._calls:
                    self._calls.popleft()()
                self._raft.tick()
        except Exception as error:  # every failure of Raft is final
            self._fail(error)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._raft.transport.destroy()
            self._store.close()
            if not self._failed:
                self._raft.journal._destroy()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failed:
            self._failed = True
            self._on_fatal(error)
