"""A cluster of real processes that can be hurt: on loopback, or each process on a network of its own.

Rules: a process is signalled by pid and start time and by nothing else; several are hit at
once, one system call after another, and only then waited for. Whatever is started is told
to the janitor first. Nothing here knows of scenarios.

Theory: layout and settings are those of `penstock local` (penstock.local.plan); only the
addresses differ when processes live in namespaces.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from chaos import secure
from chaos.janitor import Janitor, unmount
from chaos.network import HOST, Network
from chaos.shim import Shim
from penstock.connector import PLAINTEXT
from penstock.local import launch, plan, ports, probe
from penstock.local.plan import CONTROLLER, GATEWAY, NODE, ClusterSpec, Member, ProcessRecord
from penstock.local.ports import choose_base
from penstock.local.processes import (
    ProcessState,
    identity,
    last_lines,
    process_state,
    send_signal,
    spawn,
)
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import controller_pb2_grpc
from support.waiting import wait_for

READY_TIMEOUT_S = 180.0
END_TIMEOUT_S = 90.0
ASK_TIMEOUT_S = 5.0
LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost):(\d+)")
_TRACE = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)


@dataclass(frozen=True)
class Needs:
    """What a scenario's cluster is made of beside the processes."""

    network: bool = False
    shim: bool = False
    small_disk: tuple[str, ...] = ()
    """Processes whose data lies on a small disk of their own."""
    settings: tuple[tuple[str, str, str], ...] = ()
    """(role, key, value)."""
    nodes: int = 3
    late: tuple[str, ...] = ()
    """Processes that are not there from the beginning: each joins when it is told to."""


class Cluster:
    """3 controllers, 3 storage nodes (or as the needs say), 2 gateways in `directory`. Use as a context manager."""

    SMALL_DISK_MIB = 96

    def __init__(self, directory: Path, needs: Needs, janitor: Janitor, *, is_secure: bool = False) -> None:
        self.directory = directory
        self._needs = needs
        self._janitor = janitor
        self._undo = ExitStack()
        settings: dict[str, dict[str, str]] = {}
        for role, key, value in needs.settings:
            settings.setdefault(role, {})[key] = value
        base_port = choose_base()
        spec = ClusterSpec(
            controllers=3,
            nodes=needs.nodes,
            gateways=2,
            port=base_port,
            settings=settings,
            secure=is_secure,
        )
        avoid = plan.reserved_ports(base_port)
        self.state = plan.plan_cluster(spec, lambda count: ports.choose_free(count, avoid))
        every = [member.name for member in self.state.members]
        self.names = [name for name in every if name not in needs.late]
        """All that are to be there: not those that were let go, or have yet to join."""
        self.network = Network(every, janitor) if needs.network else None
        self._shim: Shim | None = None
        self._connector = PLAINTEXT
        self._owner_of_port = {
            str(port): member.name for member in self.state.members for port in member.ports.values()
        }

    def __enter__(self) -> Cluster:
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            if self.network is not None:
                self._undo.callback(self.network.remove)
                self.network.make()
            if self._needs.shim:
                self._shim = Shim(self.directory / "shim")
            for name in self._needs.small_disk:
                self._mount(self.directory / name)
            self._undo.callback(self.down)
            if self.state.secure:
                hosts = {name: self._host(name) for name in self.names} if self.network is not None else {}
                secure.prepare(self.directory, self.state, hosts)
                self._connector = secure.admin_connector(self.directory)
            self.start(*self.names)
            if self.state.secure:
                secure.make_user(self.bootstrap(), self.directory)
        except BaseException:
            self._undo.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    # --- facts -------------------------------------------------------------------

    @property
    def controllers(self) -> list[str]:
        return self._of_role(CONTROLLER)

    @property
    def nodes(self) -> list[str]:
        return self._of_role(NODE)

    @property
    def gateways(self) -> list[str]:
        return self._of_role(GATEWAY)

    @property
    def shim(self) -> Shim:
        assert self._shim is not None, "this scenario's needs do not name the shim"
        return self._shim

    def address(self, name: str, use: str) -> str:
        member = self.state.member(name)
        return f"{self._host(name)}:{member.ports[use]}"

    def bootstrap(self, use: str = "kafka", gateways: Sequence[str] = ()) -> str:
        """Addresses of the gateways' proxy (`kafka`) or direct listeners."""
        return ",".join(self.address(name, use) for name in gateways or self.gateways)

    def clients(self, use: str = "kafka", gateways: Sequence[str] = ()) -> dict[str, str]:
        """What a client needs to come in there, by librdkafka's names."""
        where = {"bootstrap.servers": self.bootstrap(use, gateways)}
        return where | (secure.load_settings(self.directory) if self.state.secure else {})

    def _controller(self, name: str) -> grpc.Channel:
        address = self.address(name, "grpc")
        if self.state.secure:
            return secure.controller_channel(self.directory, address)
        return grpc.insecure_channel(address)

    def pid(self, name: str) -> int:
        pid = self.state.process(name).pid
        assert pid is not None, name
        return pid

    def node_name(self, node_id: int) -> str:
        return next(m.name for m in self.state.members if (m.role, m.id) == (NODE, node_id))

    def data_dir(self, name: str) -> Path:
        return self.directory / name / "data"

    def log(self, name: str) -> Path:
        return self.directory / name / "log.txt"

    def is_running(self, name: str) -> bool:
        return self._state(name) is not ProcessState.DEAD

    def active_controller(self, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Name of the controller that says that it is the active one."""

        def ask() -> str:
            for name in self.controllers:
                if self._state(name) is not ProcessState.RUNNING:
                    continue
                with self._controller(name) as channel:
                    stub = controller_pb2_grpc.ControllerStub(channel)
                    try:
                        answer = stub.DescribeQuorum(api.DescribeQuorumRequest(), timeout=ASK_TIMEOUT_S)
                    except grpc.RpcError:
                        continue
                if answer.active_controller_id == self.state.member(name).id:
                    return name
            return ""

        return wait_for(ask, "an active controller", timeout_s)

    def traces(self) -> list[str]:
        """Processes whose log holds a stack trace."""
        return [name for name in self.names if _TRACE.search(self._log_text(name))]

    def last_words(self, name: str, lines: int = 3) -> str:
        return " | ".join(line[:300] for line in last_lines(self.log(name), lines))

    # --- changes -----------------------------------------------------------------

    def start(self, *names: str, ready: bool = True) -> None:
        """Start those that are dead, all at once, continue those that are stopped; wait until ready."""
        dead = []
        for name in names:
            state = self._state(name)
            if state is ProcessState.STOPPED:
                self.signal(signal.SIGCONT, name)
            elif state is ProcessState.DEAD:
                dead.append(self.state.process(name))
        self._launch(dead)
        if ready:
            self.wait_ready(*names)

    def wait_ready(self, *names: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until each of them says so, and the gateways among them serve clients."""
        reasons: dict[str, str] = {}

        def ready() -> bool:
            nodes = sum(self._state(name) is ProcessState.RUNNING for name in self.nodes)
            for name in names:
                if self._state(name) is ProcessState.DEAD:
                    raise AssertionError(f"{name} ended at its start: {self.last_words(name)}")
                member = self.state.member(name)
                # A controller's HTTP port has no door of its own.
                connector = PLAINTEXT if member.role == CONTROLLER else self._connector
                answer = probe.http_ready(self._host(name), member.ports["http"], 1.0, connector)
                if answer.ready and member.role == GATEWAY:
                    answer = probe.kafka_ready(
                        self._host(name), member.ports["kafka"], nodes, 5.0, self._connector
                    )
                if not answer.ready:
                    reasons[name] = answer.reason
                    return False
                reasons.pop(name, None)
            return True

        try:
            wait_for(ready, "processes ready", timeout_s)
        except AssertionError as error:
            raise AssertionError(f"{error}; {reasons}") from None

    def signal(self, number: signal.Signals, *names: str) -> None:
        """Send a signal to all of them, and to those only; those that are dead are left out."""
        for record in map(self.state.process, names):
            send_signal(record.pid, record.identity, number)

    def kill(self, *names: str) -> None:
        """kill -9 of all of them at once; returns when they are gone."""
        self.signal(signal.SIGKILL, *names)
        self._await_dead(names, END_TIMEOUT_S)

    def terminate(self, *names: str) -> None:
        """SIGTERM to all at once; those that do not end in time fail the run."""
        self.signal(signal.SIGTERM, *names)
        self._await_dead(names, END_TIMEOUT_S)

    def stop(self, *names: str) -> None:
        self.signal(signal.SIGSTOP, *names)

    def resume(self, *names: str) -> None:
        self.signal(signal.SIGCONT, *names)

    def wipe(self, name: str) -> None:
        """The disk of a dead process is replaced with an empty one."""
        assert not self.is_running(name), name
        shutil.rmtree(self.data_dir(name))

    def admit(self, name: str) -> None:
        """As `penstock controller replace` does for a controller with an empty disk."""
        request = api.ReplaceControllerRequest(controller_id=self.state.member(name).id)

        def ask() -> bool:
            active = self.active_controller()
            with self._controller(active) as channel:
                stub = controller_pb2_grpc.ControllerStub(channel)
                try:
                    answer = stub.ReplaceController(request, timeout=ASK_TIMEOUT_S)
                except grpc.RpcError:
                    return False
            return bool(answer.new_directory_id)

        wait_for(ask, f"{name} admitted", READY_TIMEOUT_S)

    def join(self, name: str) -> None:
        """One of those that were to come late is started, and expected from now on."""
        assert name not in self.names, name
        self.names.append(name)
        self.start(name)

    def let_go(self, name: str, timeout_s: float = END_TIMEOUT_S) -> str:
        """Wait until a node that was taken out has ended by itself; from then on nobody expects it. Its last words."""
        if not self._are_dead([name], timeout_s):
            raise AssertionError(f"{name} was taken out and goes on: {self.last_words(name)}")
        assert name not in self.traces(), f"stack trace in the log of {name}"
        self.names.remove(name)
        return self.last_words(name, lines=20)

    def down(self) -> None:
        """End everything: gateways, nodes, controllers; those that do not go are killed."""
        self.signal(signal.SIGCONT, *self.names)
        for group in (self.gateways, self.nodes, self.controllers):
            self.signal(signal.SIGTERM, *group)
            if not self._are_dead(group, END_TIMEOUT_S):
                self.kill(*group)

    # --- inside ------------------------------------------------------------------

    def _of_role(self, role: str) -> list[str]:
        return [member.name for member in self.state.of_role(role) if member.name in self.names]

    def _host(self, name: str) -> str:
        return self.network.address(name) if self.network is not None else plan.HOST

    def _state(self, name: str) -> ProcessState:
        record = self.state.process(name)
        return process_state(record.pid, record.identity)

    def _log_text(self, name: str) -> str:
        return self.log(name).read_text(errors="replace") if self.log(name).exists() else ""

    def _launch(self, records: Sequence[ProcessRecord]) -> None:
        for record in records:
            folder = self.directory / record.name
            folder.mkdir(exist_ok=True)
            settings = self._settings(self.state.member(record.name))
            (folder / plan.SETTINGS_FILE).write_text(plan.to_toml(settings))
        with self._shim.loaded() if self._shim is not None else nullcontext():
            pids = self._spawn(records)
        for record, pid in zip(records, pids, strict=True):
            record.pid, record.identity = pid, identity(pid)
            self._janitor.process(pid, record.identity)

    def _spawn(self, records: Sequence[ProcessRecord]) -> list[int]:
        jobs = []
        for record in records:
            module, *arguments = plan.module_and_arguments(self.state, record, self.directory)
            jobs.append(
                launch.Job(module, arguments, str(self.directory / record.name), str(self.log(record.name)))
            )
        if self.network is None:
            return launch.start_all(jobs)
        return [
            spawn(
                [*self.network.entering(record.name), sys.executable, "-P", "-m", job.module, *job.arguments],
                Path(job.directory),
                Path(job.log),
            )
            for record, job in zip(records, jobs, strict=True)
        ]

    def _settings(self, member: Member) -> dict[str, Any]:
        settings = plan.member_settings(self.state, member, self.directory)
        if self.network is None:
            return settings
        moved: dict[str, Any] = self._moved(settings)
        return moved | {"allow_insecure_bind": True}

    def _moved(self, value: Any) -> Any:
        """Settings with every loopback address replaced with its owner's own."""
        if isinstance(value, dict):
            return {key: self._moved(entry) for key, entry in value.items()}
        if isinstance(value, list):
            return [self._moved(entry) for entry in value]
        if isinstance(value, str):
            return LOOPBACK.sub(lambda m: f"{self._host(self._owner_of_port[m[1]])}:{m[1]}", value)
        return value

    def _mount(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._janitor.mount(folder)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={self.SMALL_DISK_MIB}m", "tmpfs", str(folder)], check=True
        )
        self._undo.callback(unmount, str(folder))

    def _are_dead(self, names: Iterable[str], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while any(self.is_running(name) for name in names):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _await_dead(self, names: Sequence[str], timeout_s: float) -> None:
        if not self._are_dead(names, timeout_s):
            left = [name for name in names if self.is_running(name)]
            raise AssertionError(f"{left} did not end within {timeout_s:.0f} s: {self.last_words(left[0])}")


__all__ = ["HOST", "Cluster", "Needs"]


def can_mount() -> str:
    """Why small disks cannot be made here; empty when they can."""
    return "" if os.geteuid() == 0 else "mounting a small disk needs root"
