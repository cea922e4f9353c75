"""What a way of starting and stopping processes can do: a rolling restart and a change of scale ask for no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ProcessName:
    """One process of the cluster, as operations name it."""

    role: str
    """"controller", "storage-node" or "gateway"."""
    name: str
    """"controller-1", "node-3" or the gateway's id."""
    http: str = ""
    """Where it serves health, "host:port"; empty when it is not known."""

    @property
    def number(self) -> int:
        """Of a controller or a node: its id. Of a gateway: digits at the end of its id, 0 where there are none."""
        tail = self.name.rpartition("-")[2]
        return int(tail) if tail.isascii() and tail.isdigit() else 0


class Way(Protocol):
    """Blocking calls, for a command; each raises CommandError with the mend."""

    via: str
    """As `--via` names it."""

    def restart(self, process: ProcessName) -> None:
        """TERM it, wait until it has ended, start it again. Returns once it has been started; nothing is said of
        whether it is well."""

    def start_more(self, role: str, count: int) -> list[str]:
        """Start `count` more processes of a role; their names, as far as they are known."""

    def stop(self, processes: Sequence[ProcessName]) -> None:
        """TERM them for good, one after another."""
