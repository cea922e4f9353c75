"""Processes in containers of a compose project, by `docker compose` (v2) or `docker-compose` (1.29).

A controller is found by its service, a gateway by its host name, which is its id, and a storage node by the directory
that its process has open: whoever scales does not know which container took which slot. A container of a storage node
that has none open is a spare.

Other services are left as they are: each call names the one that it is about, with `--no-deps` and `--no-recreate`,
because plain `up` puts every service back to the count and the image that the file has.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from penstock.cli.via.ways import ProcessName
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

CONTROLLER: Final = "controller"
NODE: Final = "storage-node"
GATEWAY: Final = "gateway"

STOP_TIMEOUT_S: Final = 60
"""How long a process has to end after TERM; then docker kills it."""
_CALL_TIMEOUT_S: Final = 600.0
_LINES_SHOWN: Final = 3
_ONE_OFF: Final = "com.docker.compose.oneoff"
_SERVICE: Final = "com.docker.compose.service"
_NUMBER: Final = "com.docker.compose.container-number"
_NODE_ID: Final = "node.id="
# The first process holds the lock file of its directory open; whose directory it is stands beside it. One `ls` for all
# open files: a node has thousands, and a process started for each took minutes on a busy machine.
_WHOSE_DIRECTORY: Final = (
    r"ls -l /proc/1/fd | sed -n 's!.* -> \(/.*/\)\.lock$!\1!p' | "
    'while read -r each; do cat "${each}meta.properties"; done'
)


@dataclass(frozen=True)
class Container:
    """One container of a role."""

    container_id: str
    name: str
    service: str
    number: int
    """Among those of its service."""
    host_name: str
    addresses: frozenset[str]
    running: bool
    health: str | None
    """As the engine says: "starting", "healthy", "unhealthy"; None where nothing checks it."""
    started_ms: int = 0
    """When it was last started, ms since 1970."""
    environment: tuple[str, ...] = ()

    @property
    def is_well(self) -> bool:
        """Whether it runs and its health check, if any, has passed."""
        return self.running and self.health in (None, "healthy")

    def is_at(self, http: str) -> bool:
        """Whether an address is this container's."""
        host = http.rpartition(":")[0].strip("[]")
        return bool(host) and host in (self.host_name, self.name, *self.addresses)


class ComposeWay:
    """The containers of one project. Implements `Way`."""

    via = "compose"

    def __init__(
        self,
        file: str | os.PathLike[str] | Sequence[str] | None = None,
        project: str | None = None,
        recreate: bool = False,
    ) -> None:
        """`file`: as `-f` has it, several as COMPOSE_FILE has them; None: as compose finds it.

        `recreate`: a restart makes a new container, from the image that the file names.
        """
        named = [] if file is None else [file] if isinstance(file, str | os.PathLike) else list(file)
        self._files = [part for each in named for part in os.fspath(each).split(os.pathsep) if part]
        self._project = project
        self._recreate = recreate
        self._compose: list[str] | None = None

    # --- the contract --------------------------------------------------------------

    def restart(self, process: ProcessName) -> None:
        """Restart its container, or put a new one in its place. Raises CommandError."""
        container = self._find(process)
        if not self._recreate:
            self._docker("restart", "-t", str(STOP_TIMEOUT_S), container.container_id)
            return
        count = len(self.containers(container.service))
        self._end(container)
        self._up(container.service, count)

    def restarted_since(self, process: ProcessName, since_ms: int) -> bool:
        """Whether its container runs and was started after that (ms since 1970); not where it is not found."""
        try:
            container = self._find(process)
        except CommandError:
            return False  # a restart says why
        return container.running and container.started_ms > since_ms

    def start_more(self, role: str, count: int) -> list[str]:
        """Start containers of a role until so many more run; the names of those that are new."""
        service = self._service(role)
        before = [each for each in self.containers(service) if each.running]
        self._up(service, len(before) + count)
        known = {each.container_id for each in before}
        return sorted(each.name for each in self.containers(service) if each.container_id not in known)

    def stop(self, processes: Sequence[ProcessName]) -> None:
        """Stop and remove their containers, one after another; of a storage node that was removed, a spare's."""
        for process in processes:
            self._end(self._leaving(process))

    # --- what a change of scale asks beside it --------------------------------------

    def containers(self, service: str | None = None) -> list[Container]:
        """Of one service, or of all; not those that `run` made. By service and number. Raises CommandError."""
        compose = self._command()
        # 1.29 tells stopped ones by itself, v2 when it is asked to.
        everything = [] if compose[0] == "docker-compose" else ["--all"]
        words = ["ps", "-q", *everything, *([service] if service else [])]
        ids = self._run(words).split()
        if not ids:
            return []
        told = json.loads(self._docker("inspect", *ids))
        found = [_container(each) for each in told if _label(each, _ONE_OFF) in ("", "False")]
        return sorted(found, key=lambda each: (each.service, each.number))

    def running(self, role: str) -> list[Container]:
        """Containers of a role that run."""
        return [each for each in self.containers(self._service(role)) if each.running]

    def scale_command(self, role: str, count: int) -> str:
        """What to type to have so many containers, and nothing else changed."""
        service = self._service(role)
        return " ".join([*self._command(), *self._chosen(), *_up_words(service, count)])

    def node_of(self, container: Container) -> int | None:
        """The id of the storage node in it; None for a spare, or one that cannot be asked."""
        done = _execute(["docker", "exec", container.container_id, "sh", "-c", _WHOSE_DIRECTORY])
        for line in done.stdout.splitlines():
            if line.startswith(_NODE_ID):
                number = line.removeprefix(_NODE_ID).strip()
                return int(number) if number.isdigit() else None
        return None

    # --- inside ---------------------------------------------------------------------

    def _service(self, role: str) -> str:
        if role not in (NODE, GATEWAY):
            raise CommandError(
                f"controllers are not scaled by compose ({role}); there are {NODE} and {GATEWAY}",
                ExitCode.USAGE,
            )
        return role

    def _find(self, process: ProcessName) -> Container:
        """The container in which it runs, or ran. Raises CommandError."""
        found = self.containers()
        wanted = [each for each in found if _is_of(each, process)]
        if not wanted and process.role == NODE:
            nodes = [each for each in found if each.service == NODE and each.running]
            wanted = [each for each in nodes if self.node_of(each) == process.number]
        if not wanted and process.http:
            wanted = [each for each in found if each.is_at(process.http)]
        if len(wanted) == 1:
            return wanted[0]
        shown = ", ".join(each.name for each in wanted or found) or "none"
        what = f"{len(wanted)} containers are" if wanted else "no container is"
        raise CommandError(
            f"{what} that of {process.name} (there are: {shown}); "
            "--compose-file and --project name the file and the project that it was started with"
        )

    def _leaving(self, process: ProcessName) -> Container:
        if process.role != NODE:
            return self._find(process)
        nodes = self.containers(NODE)
        ids = {each.container_id: self.node_of(each) for each in nodes if each.running}
        own = [each for each in nodes if ids.get(each.container_id) == process.number]
        # It gave its slot up and has none now; of several the newest. One that does not run has none either.
        spare = [each for each in reversed(nodes) if ids.get(each.container_id) is None]
        for each in (*own, *spare):
            return each
        raise CommandError(
            f"no container of the service {NODE} is that of {process.name}, and none is spare; "
            "`penstock node list` shows who is there"
        )

    def _end(self, container: Container) -> None:
        self._docker("stop", "-t", str(STOP_TIMEOUT_S), container.container_id)
        self._docker("rm", container.container_id)

    def _up(self, service: str, count: int) -> None:
        self._run(_up_words(service, count))

    def _command(self) -> list[str]:
        """Raises CommandError where there is none, or no such file."""
        for file in self._files:
            if not Path(file).is_file():
                raise CommandError(f"--compose-file {file}: there is no such file", ExitCode.USAGE)
        if self._compose is None:
            self._compose = find_compose()
        return self._compose

    def _chosen(self) -> list[str]:
        files = [word for file in self._files for word in ("-f", file)]
        return [*(["-p", self._project] if self._project else []), *files]

    def _run(self, words: Sequence[str]) -> str:
        return _call([*self._command(), *self._chosen(), *words], "--compose-file names the compose file")

    def _docker(self, *words: str) -> str:
        return _call(["docker", *words], "see `docker ps --all`")


def find_compose() -> list[str]:
    """How compose is called here. Raises CommandError."""
    if shutil.which("docker") is not None:
        if _execute(["docker", "compose", "version"]).returncode == 0:
            return ["docker", "compose"]
        if shutil.which("docker-compose") is not None:
            return ["docker-compose"]
        raise CommandError(
            "--via compose: neither `docker compose` (v2) nor `docker-compose` (1.29) is here; install one of them, "
            "or use --via print and run what it prints where there is one"
        )
    raise CommandError("--via compose: the command `docker` is not here; install it, or use --via print")


def _up_words(service: str, count: int) -> list[str]:
    return ["up", "-d", "--no-recreate", "--no-deps", "--scale", f"{service}={count}", service]


def _call(command: Sequence[str], hint: str) -> str:
    done = _execute(command)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()[-_LINES_SHOWN:]
        raise CommandError(f"`{' '.join(command)}` failed: {harmless(' | '.join(said))}; {hint}")
    return done.stdout


def _execute(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        # What is called is what the operator has on his path.
        return subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, check=False, timeout=_CALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise CommandError(f"`{' '.join(command[:4])} ...` did not end in {_CALL_TIMEOUT_S:.0f} s") from None


def _container(told: Any) -> Container:
    networks = (told.get("NetworkSettings") or {}).get("Networks") or {}
    state, number = told["State"], _label(told, _NUMBER)
    return Container(
        container_id=told["Id"],
        name=told["Name"].lstrip("/"),
        service=_label(told, _SERVICE),
        number=int(number) if number.isdigit() else 0,
        host_name=told["Config"].get("Hostname") or "",
        addresses=frozenset(
            address
            for each in networks.values()
            for address in (
                each.get("IPAddress"),
                each.get("GlobalIPv6Address"),
                *(each.get("Aliases") or ()),
            )
            if address
        ),
        running=bool(state.get("Running")),
        health=(state.get("Health") or {}).get("Status"),
        started_ms=_time_ms(state.get("StartedAt") or ""),
        environment=tuple(told["Config"].get("Env") or ()),
    )


def _time_ms(text: str) -> int:
    """Of `2026-11-23T22:45:29.489902793Z`, in ms since 1970; 0 where it is no time."""
    try:
        return int(datetime.fromisoformat(f"{text[:19]}+00:00").timestamp() * 1000) + int(text[20:23])
    except ValueError:
        return 0


def _label(told: Any, name: str) -> str:
    return str((told["Config"].get("Labels") or {}).get(name, ""))


def _is_of(container: Container, process: ProcessName) -> bool:
    """By what the container's own settings say."""
    if process.role == CONTROLLER:
        named = f"PENSTOCK_CONTROLLER_ID={process.number}" in container.environment
        return named or container.service == process.name
    if process.role == NODE:
        return f"PENSTOCK_NODE_ID={process.number}" in container.environment
    named = f"PENSTOCK_GATEWAY_ID={process.name}" in container.environment
    return named or (container.service == GATEWAY and container.host_name == process.name)
