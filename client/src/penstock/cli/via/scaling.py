"""How many processes of a role there are, more of them, and fewer: by the local cluster, by compose, or by hand.

`Scaler` is what `penstock scale` asks for. `LocalScaler` and `ComposeScaler` change something; `PrintScaler` only says
what to type where neither is in charge, in words of Kubernetes (deploy/kubernetes).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from penstock.cli.via.compose import GATEWAY, NODE, ComposeWay, Container
from penstock.cli.via.ways import ProcessName
from penstock.errors import CommandError

if TYPE_CHECKING:
    from penstock.local.cluster import LocalCluster

LIVE_TIMEOUT_S: Final = 180.0
"""How long processes that were started have to become live."""
POLL_S: Final = 0.5


class Scaler(Protocol):
    """Blocking calls; each raises CommandError with the mend."""

    via: str
    """As `--via` names it."""
    is_numbered: bool
    """Whether a storage node's place is its identity, so that those with the highest ids are the ones that go."""

    def running(self, role: str) -> int | None:
        """How many processes of a role run; None where nobody knows."""

    def start_more(self, role: str, count: int) -> list[str]:
        """Start so many more; their names."""

    def wait_until_well(self, role: str, names: Collection[str], timeout_s: float) -> None:
        """Return once those that were started are ready, as far as that can be seen here."""

    def newest(self, role: str, count: int) -> list[ProcessName]:
        """Those to stop first where one is as good as another."""

    def stop(self, processes: Sequence[ProcessName]) -> None:
        """Stop them for good."""

    def spares(self, node_ids: Collection[int], removed: Callable[[], Collection[int]]) -> list[ProcessName]:
        """Processes of storage nodes that are none of the cluster's (`node_ids`): what they were was removed.

        `removed()`: ids of which the cluster remembers that they were.
        """

    def command(self, role: str, count: int, added: Sequence[int], removed: Sequence[int]) -> str:
        """What to type to the same end. `added`, `removed`: ids of storage nodes, as far as they are known."""


class LocalScaler:
    """Processes of the local cluster."""

    via = "local"
    is_numbered = False

    def __init__(self, directory: Path) -> None:
        from penstock.local.cluster import LocalCluster

        self._cluster: LocalCluster = LocalCluster(directory)

    def running(self, role: str) -> int | None:
        alive = set(self._cluster.alive())
        return sum(record.role == role and record.name in alive for record in self._cluster.state.processes)

    def start_more(self, role: str, count: int) -> list[str]:
        return self._cluster.grow(role, count)

    def wait_until_well(self, role: str, names: Collection[str], timeout_s: float) -> None:
        """They are: they were started by a call that waits for it."""

    def newest(self, role: str, count: int) -> list[ProcessName]:
        members = sorted(self._cluster.state.of_role(role), key=lambda member: member.id)
        return [ProcessName(role, member.name) for member in members[-count:]]

    def stop(self, processes: Sequence[ProcessName]) -> None:
        known = {record.name for record in self._cluster.state.processes}
        self._cluster.remove(*[process.name for process in processes if process.name in known])

    def spares(self, node_ids: Collection[int], removed: Callable[[], Collection[int]]) -> list[ProcessName]:
        """Dead ones too: they would not be let in again. But none that the cluster may merely not know, as after its
        metadata were restored: whoever stops a process here removes its directory, and what is in that may be all that
        there is."""
        found = [member for member in self._cluster.state.of_role(NODE) if member.id not in node_ids]
        known = removed() if found else ()
        return [
            ProcessName(NODE, member.name)
            for member in found
            if member.id in known or _is_nobodys(self._cluster.directory / member.name / "data")
        ]

    def command(self, role: str, count: int, added: Sequence[int], removed: Sequence[int]) -> str:
        return f"penstock scale {role}={count} --via local --dir {self._cluster.directory}"


class ComposeScaler:
    """Containers of a compose project."""

    via = "compose"
    is_numbered = False

    def __init__(self, way: ComposeWay) -> None:
        self._way = way

    def running(self, role: str) -> int | None:
        return len(self._way.running(role))

    def start_more(self, role: str, count: int) -> list[str]:
        return self._way.start_more(role, count)

    def wait_until_well(self, role: str, names: Collection[str], timeout_s: float) -> None:
        """By the engine's health checks. Of storage nodes the cluster itself says more."""
        if role == NODE:
            return
        deadline = time.monotonic() + timeout_s

        def unwell() -> list[Container]:
            return [each for each in self._way.running(role) if each.name in names and not each.is_well]

        while waiting := unwell():
            if time.monotonic() > deadline:
                shown = ", ".join(f"{each.name} ({each.health or 'not running'})" for each in waiting)
                raise CommandError(
                    f"{shown}: not healthy after {timeout_s:.0f} s; see `docker logs {waiting[0].name}`"
                )
            time.sleep(POLL_S)

    def newest(self, role: str, count: int) -> list[ProcessName]:
        found = self._way.running(role)
        return [ProcessName(role, each.host_name) for each in found[-count:]]

    def stop(self, processes: Sequence[ProcessName]) -> None:
        self._way.stop(processes)

    def spares(self, node_ids: Collection[int], removed: Callable[[], Collection[int]]) -> list[ProcessName]:
        held = [self._way.node_of(each) for each in self._way.running(NODE)]
        return [ProcessName(NODE, "spare") for node_id in held if node_id is None or node_id not in node_ids]

    def command(self, role: str, count: int, added: Sequence[int], removed: Sequence[int]) -> str:
        scaling = self._way.scale_command(role, count)
        if removed:
            return f"{_remove_command(removed)} && {scaling}"
        return f"{scaling} && penstock node add {_listed(added)}" if added else scaling


class PrintScaler:
    """Nobody here starts or stops anything: `command` says what to type, for Kubernetes."""

    via = "print"
    is_numbered = True

    def running(self, role: str) -> int | None:
        return None

    def start_more(self, role: str, count: int) -> list[str]:
        raise CommandError("--via print starts nothing")

    def wait_until_well(self, role: str, names: Collection[str], timeout_s: float) -> None:
        raise CommandError("--via print starts nothing")

    def newest(self, role: str, count: int) -> list[ProcessName]:
        return []

    def stop(self, processes: Sequence[ProcessName]) -> None:
        raise CommandError("--via print stops nothing")

    def spares(self, node_ids: Collection[int], removed: Callable[[], Collection[int]]) -> list[ProcessName]:
        return []

    def command(self, role: str, count: int, added: Sequence[int], removed: Sequence[int]) -> str:
        if role == GATEWAY:
            return f"kubectl scale deployment gateway --replicas={count}"
        scaling = f"kubectl scale statefulset storage-node --replicas={count}"
        if removed:
            # Their directories are retired, and a claim outlives its pod.
            claims = " ".join(f"data-storage-node-{node_id}" for node_id in removed)
            return f"{_remove_command(removed)} && {scaling} && kubectl delete pvc {claims}"
        if added:
            waiting = "kubectl rollout status statefulset storage-node"
            return f"{scaling} && {waiting} && penstock node add {_listed(added)} --yes"
        return scaling


def _is_nobodys(data_dir: Path) -> bool:
    """Whether a node's directory says that it was retired, or that no cluster ever gave it an id."""
    if (data_dir / "retired").exists():
        return True
    try:
        lines = (data_dir / "meta.properties").read_text().splitlines()
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return not any(line.startswith("node.id=") for line in lines)


def _listed(node_ids: Sequence[int]) -> str:
    return ",".join(map(str, node_ids))


def _remove_command(node_ids: Sequence[int]) -> str:
    return f"penstock node remove {_listed(node_ids)} --yes --wait 86400"
