"""LocalCluster: real Penstock processes on loopback, started, killed and brought back by name.

Rules: everything is started at once and nothing sleeps for luck: a call returns when a
probe says that the thing it promised holds, or fails by a deadline with the log line of
the process that did not come up. A process that was killed stays dead until `start`.
The directory's lock is held by a changing call from beginning to end.

Theory: the state on disk (plan.ClusterState) is all there is; any process may open the
directory and go on, so the object is cheap and holds nothing that must not be lost.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from penstock.connector import PLAINTEXT, Connector, load
from penstock.errors import CommandError
from penstock.local import launch, plan, ports, probe
from penstock.local.plan import (
    CONTROLLER,
    GATEWAY,
    HOST,
    NODE,
    SINGLE,
    ClusterSpec,
    ClusterState,
    Member,
    ProcessRecord,
)
from penstock.local.processes import ProcessState, identity, last_lines, process_state, send_signal
from penstock.local.status import ClusterStatus, ProcessStatus
from penstock.local.store import Store, write_private

POLL_INTERVAL_S = 0.02
START_TIMEOUT_S = 60.0
STARTING_MAX_S = 30.0
"""How long after its start a process that is not ready counts as starting."""
STOP_TIMEOUTS_S = ((GATEWAY, 10.0), (NODE, 30.0), (CONTROLLER, 10.0), (SINGLE, 30.0))
"""Order in which `down` stops roles, and how long each may take before KILL."""
KILL_TIMEOUT_S = 10.0
REAP_TIMEOUT_S = 3.0
PATIENCE_S = 5.0
"""How long `start` waits for a process that answers, but is kept from being ready."""
LOG_FILE = "log.txt"
SETTINGS_FILE = plan.SETTINGS_FILE
LOG_LINES_SHOWN = 5
NAMES_SHOWN_MAX = 3

Progress = Callable[[str], None]


def silent(_message: str) -> None:
    """The progress callback of callers that show none."""


class LocalCluster:
    """The cluster that lives in `directory`."""

    def __init__(
        self,
        directory: Path,
        progress: Progress = silent,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.store = Store(directory)
        self.directory = self.store.directory
        self._progress = progress
        self._environment = environment

    # --- facts -------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        return self.store.load()

    @property
    def bootstrap(self) -> str:
        """Kafka address(es) of the gateways' proxy listeners."""
        return plan.addresses(self.state)["bootstrap"]

    @property
    def direct_bootstrap(self) -> str:
        return plan.addresses(self.state)["direct_bootstrap"]

    @property
    def gateway(self) -> str:
        """gRPC address(es) of the gateways."""
        return plan.addresses(self.state)["gateway"]

    @property
    def http(self) -> str:
        return plan.addresses(self.state)["http"]

    @property
    def client_file(self) -> Path | None:
        """The admin's client file of a secure cluster."""
        from penstock.local import secure

        return secure.admin_file(self.directory) if self.state.secure else None

    def log_file(self, name: str) -> Path:
        """The log of a process, dead or alive."""
        self.state.process(name)
        return self._log(name)

    def status(self) -> ClusterStatus:
        """States of all processes now; asks each living one whether it is ready."""
        state = self.state
        return ClusterStatus(
            self.directory,
            plan.addresses(state),
            [self._status_of(state, record) for record in state.processes],
            self.client_file,
        )

    def alive(self) -> list[str]:
        """Names of the processes that exist now, stopped ones included."""
        return [r.name for r in self.state.processes if _state_of(r) is not ProcessState.DEAD]

    def gateways_alive(self, use: str) -> list[str]:
        """Addresses of the gateways whose processes exist now: their `kafka`, `direct`, `grpc` or `http` ports."""
        state = self.state
        members = [
            state.member(name)
            for record in state.processes
            if _state_of(record) is not ProcessState.DEAD
            for name in record.members
        ]
        host = plan.SECURE_HOST if state.secure else HOST
        return [f"{host}:{member.ports[use]}" for member in members if member.role == GATEWAY]

    # --- changes -----------------------------------------------------------------

    def up(self, spec: ClusterSpec, timeout_s: float = START_TIMEOUT_S) -> bool:
        """Start the cluster; True when started, False when some of it was running already.

        A directory that holds a stopped cluster gets that one back, data and settings;
        callers check beforehand that `spec` does not ask for another (`differences`).
        When a process dies or the deadline passes, those started here are stopped again,
        settings are as they were, and of a cluster that was new only the logs are left.
        """
        spec.check()
        with self.store.locked(create=True):
            before = self.store.load() if self.store.exists() else None
            if before is None:
                avoid = plan.reserved_ports(spec.port)
                state = plan.plan_cluster(spec, lambda count: ports.choose_free(count, avoid))
            else:
                if any(_state_of(record) is not ProcessState.DEAD for record in before.processes):
                    return False
                state = self.store.load()
                for role, settings in spec.settings.items():
                    state.settings.setdefault(role, {}).update(settings)
            try:
                self._check_ports(state, state.members)
                self._prepare(state)
                records = [r for r in state.processes if not self._is_retired(r)]
                self._launch(state, records)
                notes = self._await_ready(state, records, timeout_s)
                if notes:
                    raise CommandError(notes[0])
            except BaseException:
                # Also for Ctrl-C: what was begun here and is not up is not left behind.
                self._stop(state.processes, grace_s=2.0)
                if before is None:
                    self.store.wipe(state, keep=LOG_FILE)
                else:
                    self.store.save(before)
                raise
        return True

    def start(self, *names: str, timeout_s: float = START_TIMEOUT_S) -> list[str]:
        """Start dead processes again, all at once, with the ports and data that they had.

        One that is stopped (SIGSTOP) is continued, one that runs is left alone. Returns
        when they are ready; a process that lives but cannot be ready, say a controller
        without a quorum, is told in the notes returned. One that dies is an error.
        """
        with self.store.locked():
            state = self.store.load()
            return self._start(state, state.processes_named(names), timeout_s)

    def start_all(self, timeout_s: float = START_TIMEOUT_S) -> tuple[list[str], list[str]]:
        """Start all that is dead or stopped, as `start` does: the names of these processes, and the notes.

        Storage nodes that were removed from the cluster stay where they are: they would be refused.
        """
        with self.store.locked():
            state = self.store.load()
            records = [
                r
                for r in state.processes
                if _state_of(r) is not ProcessState.RUNNING and not self._is_retired(r)
            ]
            return [r.name for r in records], self._start(state, records, timeout_s)

    def _is_retired(self, record: ProcessRecord) -> bool:
        """Whether it is a storage node that `penstock node remove` or `replace` ended: its directory is marked."""
        return (self.directory / record.name / "data" / "retired").exists()

    def kill(self, name: str, signal_number: signal.Signals = signal.SIGKILL, timeout_s: float = 30.0) -> int:
        """Send a signal to a process; after KILL or TERM waits until it is gone. Returns the pid."""
        return self.kill_several([name], signal_number, timeout_s)[name]

    def kill_several(
        self,
        names: Sequence[str] | None,
        signal_number: signal.Signals = signal.SIGKILL,
        timeout_s: float = 30.0,
    ) -> dict[str, int]:
        """Send a signal to processes side by side, None: to all that live; the pids by name.

        After KILL or TERM waits until they are gone. Nothing is sent when one of the names is unknown or dead.
        """
        with self.store.locked():
            state = self.store.load()
            living = [r for r in state.processes if _state_of(r) is not ProcessState.DEAD]
            records = living if names is None else state.processes_named(names)
            dead = [record.name for record in records if record not in living]
            if dead:
                raise _dead_already(dead)
            stopped = [record for record in records if _state_of(record) is ProcessState.STOPPED]
            pids = {}
            for record in records:
                if record.pid is None or not send_signal(record.pid, record.identity, signal_number):
                    raise _dead_already([record.name])
                pids[record.name] = record.pid
            left = list(records)

            def all_there() -> bool:
                left[:] = [r for r in left if not _has_obeyed(r, signal_number, was_stopped=r in stopped)]
                return not left

            if not _wait_until(all_there, timeout_s):
                shown = ", ".join(f"{record.name} (process {record.pid})" for record in left)
                raise CommandError(
                    f"{shown}: still there {timeout_s:.0f} s after {signal_number.name}; look at "
                    f"`penstock local logs {left[0].name}`, or use --signal KILL"
                )
            return pids

    def add(self, role: str, timeout_s: float = START_TIMEOUT_S) -> str:
        """Add and start one more storage node or gateway; returns its name."""
        with self.store.locked():
            state = self.store.load()
            if state.single:
                raise CommandError(
                    "a --single cluster is one process and cannot grow: use `up` without --single"
                )
            avoid = plan.reserved_ports(state.port) | {p for m in state.members for p in m.ports.values()}
            member = plan.plan_member(state, role, lambda count: ports.choose_free(count, avoid))
            self._check_ports(state, [member])
            record = state.process(member.name)
            # A removal that was cut short may have left the directory of a member that had the name.
            self.store.clear(member.name)
            self._prepare(state)
            self._launch(state, [record])
            notes = self._await_ready(state, [record], timeout_s)
            if notes:
                raise CommandError(notes[0])
            return member.name

    def grow(self, role: str, count: int, timeout_s: float = START_TIMEOUT_S) -> list[str]:
        """Have `count` more processes of a role run: dead ones are started first, then new ones made; their names.

        Raises CommandError; those that were started until then stay.
        """
        state = self.state
        dead = [r.name for r in state.processes if r.role == role and _state_of(r) is ProcessState.DEAD]
        again = dead[:count]
        if again:
            notes = self.start(*again, timeout_s=timeout_s)
            if notes:
                raise CommandError(notes[0])
        return again + [self.add(role, timeout_s) for _ in range(count - len(again))]

    def remove(self, *names: str) -> list[str]:
        """Stop storage nodes and gateways for good, one after another, their directories with them; the names.

        `up` and `start` do not know them afterwards. What a storage node holds has to be elsewhere by then: this asks
        nobody. Raises CommandError for a controller, for the last one of a role, and for an unknown name.
        """
        with self.store.locked():
            state = self.store.load()
            records = state.processes_named(names)
            if state.single:
                raise CommandError("a --single cluster is one process and cannot shrink")
            for record in records:
                if record.role == CONTROLLER:
                    raise CommandError(f"{record.name} is a controller: their number is that of the quorum")
                if len(state.of_role(record.role)) == 1:
                    raise CommandError(f"{record.name} is the only {record.role} of the cluster")
                self._stop([record])
                self.store.forget(state, record)
            return [record.name for record in records]

    def down(self, *, wipe: bool = False, reaped: bool = False) -> list[str]:
        """Stop every process: gateways, then nodes, then controllers; returns the names stopped.

        Each role gets TERM and its own bounded time, then KILL. `wipe` removes the data too.
        With `reaped` it waits until not even their entries in the process table are left,
        which is up to the system's first process, their parent by now.
        """
        with self.store.locked():
            state = self.store.load()
            names = [r.name for r in state.processes if _state_of(r) is not ProcessState.DEAD]
            self._stop(state.processes)
            if reaped:
                _wait_until(lambda: not any(_is_known(r) for r in state.processes), REAP_TIMEOUT_S)
            if wipe:
                self.store.wipe(state)
            return names

    def destroy(self) -> None:
        """Kill every process at once and remove the data: for clusters that nobody needs any more."""
        with self.store.locked():
            state = self.store.load()
            for record in state.processes:
                send_signal(record.pid, record.identity, signal.SIGKILL)
            self._await_dead(state.processes, KILL_TIMEOUT_S)
            self.store.wipe(state)

    def differences(self, asked: dict[str, object]) -> list[str]:
        """Which of the options that were given explicitly do not fit the cluster in the directory."""
        if not self.store.exists():
            return []
        state = self.store.load()
        have: dict[str, object] = {
            "controllers": len(state.of_role(CONTROLLER)),
            "nodes": len(state.of_role(NODE)),
            "gateways": len(state.of_role(GATEWAY)),
            "racks": tuple(state.racks),
            "port": state.port,
            "single": state.single,
            "secure": state.secure,
        }
        return [f"{name} is {_shown(have[name])}" for name, value in asked.items() if have[name] != value]

    # --- inside ------------------------------------------------------------------

    def _start(self, state: ClusterState, records: Sequence[ProcessRecord], timeout_s: float) -> list[str]:
        """Start the dead ones, all at once; notes on the others, and on what is not ready then."""
        notes = []
        dead = []
        for record in records:
            now = _state_of(record)
            if now is ProcessState.STOPPED:
                send_signal(record.pid, record.identity, signal.SIGCONT)
                notes.append(f"{record.name} was stopped and goes on")
            elif now is ProcessState.DEAD:
                dead.append(record)
            else:
                notes.append(f"{record.name} is running already (process {record.pid})")
        self._check_ports(state, [state.member(name) for record in dead for name in record.members])
        self._prepare(state)
        self._launch(state, dead)
        return notes + self._await_ready(state, dead, timeout_s, patience_s=PATIENCE_S)

    def _log(self, name: str) -> Path:
        return self.directory / name / LOG_FILE

    def _check_ports(self, state: ClusterState, members: Iterable[Member]) -> None:
        for member in members:
            for use, port in member.ports.items():
                if ports.is_free(port):
                    continue
                if member.role == GATEWAY:
                    hint = (
                        f"choose another --port than {state.port} (with another --dir), or stop that program"
                    )
                else:
                    hint = "stop that program, then try again"
                raise CommandError(
                    f"port {port} is taken {ports.holder(port)}; {member.name} needs it for {use}: {hint}"
                )

    def _prepare(self, state: ClusterState) -> None:
        """Certificates and users of a secure cluster."""
        if state.secure:
            from penstock.local import secure

            secure.prepare(self.directory, state)

    def _connector(self, state: ClusterState) -> Connector:
        """How to come in at the cluster's listeners."""
        if not state.secure:
            return PLAINTEXT
        from penstock.local import secure

        return load(secure.admin_file(self.directory))

    def _launch(self, state: ClusterState, records: Sequence[ProcessRecord]) -> None:
        """Write the settings files, then spawn all of the processes."""
        for name in [name for record in records for name in record.members]:
            (self.directory / name).mkdir(mode=0o700, exist_ok=True)
            settings = plan.member_settings(state, state.member(name), self.directory)
            write_private(self.directory / name / SETTINGS_FILE, plan.to_toml(settings))
        jobs = []
        for record in records:
            directory = self.directory / record.name
            directory.mkdir(mode=0o700, exist_ok=True)
            module, *arguments = plan.module_and_arguments(state, record, self.directory)
            jobs.append(launch.Job(module, arguments, str(directory), str(self._log(record.name))))
        for record, pid in zip(records, launch.start_all(jobs, self._environment), strict=True):
            record.pid = pid
            record.identity = identity(pid)
        self.store.save(state)

    def _await_ready(
        self,
        state: ClusterState,
        records: Sequence[ProcessRecord],
        timeout_s: float,
        patience_s: float | None = None,
    ) -> list[str]:
        """Wait until each process is ready and each gateway among them serves Kafka clients.

        Returns notes on those that live but are not ready by the deadline, or already when
        all of them have given the same reason for `patience_s`.
        """
        begun = unchanged_since = time.monotonic()
        told: dict[str, str] = {}
        connector, host = self._connector(state), plan.SECURE_HOST if state.secure else HOST
        gateways = [m for record in records for m in map(state.member, record.members) if m.role == GATEWAY]
        nodes_expected = sum(
            _state_of(record) is ProcessState.RUNNING and state.member(name).role == NODE
            for record in state.processes
            for name in record.members
        )
        while True:
            missing: dict[str, probe.Readiness] = {}
            for record in records:
                if _state_of(record) is ProcessState.DEAD:
                    raise self._died(record)
                answer = self._ready(state, record)
                if not answer.ready:
                    missing[record.name] = answer
            for member in gateways if not missing else ():
                answer = probe.kafka_ready(host, member.ports["kafka"], nodes_expected, connector=connector)
                if not answer.ready:
                    missing[member.name] = answer
            if not missing:
                return []
            self._progress(
                f"{len(records) - len(missing)} of {len(records)} are ready; {_waiting_for(missing)}"
            )
            now = time.monotonic()
            reasons = {
                name: answer.reason if answer.answered else str(now) for name, answer in missing.items()
            }
            if reasons != told:
                told, unchanged_since = reasons, now
            waited_s = now - begun
            if waited_s > timeout_s or (patience_s is not None and now - unchanged_since > patience_s):
                return [
                    f"{name} is not ready after {waited_s:.0f} s: {answer.reason}; its log: {self._log(name)}"
                    for name, answer in missing.items()
                ]
            time.sleep(POLL_INTERVAL_S)

    def _died(self, record: ProcessRecord) -> CommandError:
        lines = last_lines(self._log(record.name), LOG_LINES_SHOWN)
        tail = "\n  ".join(lines) if lines else "(it wrote nothing)"
        return CommandError(
            f"{record.name} ended at its start; the end of {self._log(record.name)}:\n  {tail}"
        )

    def _ready(self, state: ClusterState, record: ProcessRecord) -> probe.Readiness:
        connector = self._connector(state)
        members = [state.member(name) for name in record.members]
        answers = [
            # Controllers know no users: their HTTP port is plain, and on loopback.
            probe.http_ready(
                HOST, m.ports["http"], connector=PLAINTEXT if m.role == plan.CONTROLLER else connector
            )
            for m in members
        ]
        return next((answer for answer in answers if not answer.ready), answers[-1])

    def _status_of(self, state: ClusterState, record: ProcessRecord) -> ProcessStatus:
        now = _state_of(record)
        detail = ""
        if now is ProcessState.RUNNING:
            answer = self._ready(state, record)
            detail = "" if answer.ready else f"not ready: {answer.reason}"
            if not answer.ready and _age_s(self._log(record.name).with_name(SETTINGS_FILE)) < STARTING_MAX_S:
                now = ProcessState.STARTING
        pid = None if now is ProcessState.DEAD else record.pid
        return ProcessStatus(record.name, record.role, record.id, pid, now, detail)

    def _stop(self, records: Sequence[ProcessRecord], grace_s: float | None = None) -> None:
        for role, role_timeout_s in STOP_TIMEOUTS_S:
            group = [r for r in records if r.role == role and _state_of(r) is not ProcessState.DEAD]
            for record in group:
                send_signal(record.pid, record.identity, signal.SIGTERM)
                send_signal(record.pid, record.identity, signal.SIGCONT)
            timeout_s = role_timeout_s if grace_s is None else grace_s
            if not self._await_dead(group, timeout_s):
                for record in group:
                    if send_signal(record.pid, record.identity, signal.SIGKILL):
                        self._progress(f"{record.name} did not stop within {timeout_s:.0f} s: killed")
                if not self._await_dead(group, KILL_TIMEOUT_S):
                    names = ", ".join(r.name for r in group if _state_of(r) is not ProcessState.DEAD)
                    raise CommandError(f"{names}: still there after SIGKILL; the disk may hang (see `dmesg`)")

    def _await_dead(self, records: Sequence[ProcessRecord], timeout_s: float) -> bool:
        def all_dead() -> bool:
            left = [record.name for record in records if _state_of(record) is not ProcessState.DEAD]
            if left:
                self._progress(f"waiting for {', '.join(left)} to stop")
            return not left

        return _wait_until(all_dead, timeout_s)


def _state_of(record: ProcessRecord) -> ProcessState:
    return process_state(record.pid, record.identity)


def _has_obeyed(record: ProcessRecord, signal_number: signal.Signals, *, was_stopped: bool) -> bool:
    """Whether a signal has had the effect that is to be waited for."""
    now = _state_of(record)
    wanted = {
        signal.SIGKILL: ProcessState.DEAD,
        # A stopped process gets it when it goes on.
        signal.SIGTERM: ProcessState.STOPPED if was_stopped else ProcessState.DEAD,
        signal.SIGSTOP: ProcessState.STOPPED,
        signal.SIGCONT: ProcessState.RUNNING,
    }.get(signal_number)
    return wanted is None or now in (wanted, ProcessState.DEAD)


def _dead_already(names: Sequence[str]) -> CommandError:
    are, them = ("is", "it") if len(names) == 1 else ("are", "them")
    return CommandError(
        f"{', '.join(names)} {are} dead already; `penstock local start {' '.join(names)}` brings {them} back"
    )


def _is_known(record: ProcessRecord) -> bool:
    """Whether the process, dead or alive, is still in the process table."""
    return record.pid is not None and identity(record.pid) == record.identity


def _wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)
    return True


def _age_s(file: Path) -> float:
    """Seconds since a process was started: its settings file is written at each start."""
    try:
        return time.time() - file.stat().st_mtime
    except OSError:
        return STARTING_MAX_S


def _waiting_for(missing: dict[str, probe.Readiness]) -> str:
    """The names; of a last one also why, since that is what a user waits for."""
    if len(missing) == 1:
        name, answer = next(iter(missing.items()))
        return f"waiting for {name}: {answer.reason}" if answer.answered else f"waiting for {name}"
    first = list(missing)[:NAMES_SHOWN_MAX]
    more = f" and {len(missing) - len(first)} more" if len(missing) > len(first) else ""
    return f"waiting for {', '.join(first)}{more}"


def _shown(value: object) -> str:
    return ",".join(value) or "none" if isinstance(value, tuple) else str(value)


__all__ = ["ClusterSpec", "LocalCluster"]
