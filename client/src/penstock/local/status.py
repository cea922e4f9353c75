"""What `penstock local up` and `status` tell."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock.local.processes import ProcessState


@dataclass(frozen=True)
class ProcessStatus:
    """One row of `status`: `pid` is None when dead; `detail` is for people."""

    name: str
    role: str
    id: int
    pid: int | None
    state: ProcessState
    detail: str = ""


@dataclass(frozen=True)
class ClusterStatus:
    """What `up` and `status` tell; `to_json` is the documented form."""

    directory: Path
    addresses: dict[str, str]
    processes: list[ProcessStatus]
    client_file: Path | None = None
    """The admin's, of a secure cluster."""

    def to_json(self) -> dict[str, object]:
        rows = [
            {"name": row.name, "role": row.role, "id": row.id, "pid": row.pid, "state": str(row.state)}
            for row in self.processes
        ]
        more = {} if self.client_file is None else {"client_config": str(self.client_file)}
        return {**self.addresses, **more, "processes": rows}
