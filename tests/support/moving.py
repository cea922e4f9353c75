"""A cluster that is restarted process by process with other settings, as docs/security.md has it done."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from support.certificates import ClusterCa, as_flag
from support.cluster import wait_until_ready
from support.secure import ListenerFiles

ROLES = {CONTROLLER: "controller", NODE: "storage-node", GATEWAY: "gateway"}


class Moving:
    """What each process gets at its next restart: `mode` of `[tls]`, `listeners` of gateways, `more` by role.

    None and "" leave as it is what the cluster began with.
    """

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster = cluster
        self.files = ListenerFiles(directory / "listener")
        self.ca, self._directory = ClusterCa(), directory
        self.mode = ""
        self.listeners: tuple[str, ...] | None = None
        self.more: dict[str, dict[str, str]] = {}

    def tls(self, role: str, name: str, mode: str) -> str:
        """The `[tls]` table of a process."""
        directory = self._directory / f"{role}-{name}".replace("*", "any")
        if not (directory / "cert.pem").exists():
            self.ca.issue(directory, role, name)
        table = {what: str(directory / f"{what}.pem") for what in ("cert", "key", "ca")}
        return as_flag({**table, "mode": mode})

    def settle(self, name: str) -> None:
        """Set for a process what it is to have now."""
        with self.cluster.store.locked():
            state = self.cluster.store.load()
            member = state.member(name)
            settings = dict(self.more.get(member.role, {}))
            if self.mode:
                named = str(member.id) if member.role == CONTROLLER else "*"
                settings["tls"] = self.tls(ROLES[member.role], named, self.mode)
            if member.role == GATEWAY and self.listeners is not None:
                settings["listeners"] = json.dumps(
                    [self._listener(member.ports, each) for each in self.listeners]
                )
            state.settings[member.role] = {**state.settings.get(member.role, {}), **settings}
            self.cluster.store.save(state)

    def restart(self, name: str) -> None:
        """Stop a process as an operator does, and start it with the settings of now."""
        self.cluster.kill(name, signal.SIGTERM)
        self.settle(name)
        if name in self.names(GATEWAY) and self.listeners is not None and "PROXY" not in self.listeners:
            # Nobody listens at the port where `start` would ask for the gateway until its time is over.
            self.cluster.start(name, timeout_s=0)
        else:
            self.cluster.start(name)
        wait_until_ready(self.cluster)

    def names(self, *roles: str) -> list[str]:
        """All processes, or those of some roles."""
        return [m.name for m in self.cluster.store.load().members if not roles or m.role in roles]

    def round(self, *roles: str) -> None:
        """Restart every process, one after another."""
        for name in self.names(*roles):
            self.restart(name)

    def _listener(self, ports: dict[str, int], name: str) -> dict[str, Any]:
        if name == "PROXY":
            return {"name": name, "bind": f"127.0.0.1:{ports['kafka']}"}
        tls = self.files.table()
        return {"name": name, "bind": f"localhost:{ports['direct']}", "security": "SASL_SSL", "tls": tls}

    def bootstrap(self, use: str) -> str:
        """Addresses of all gateways."""
        host = "127.0.0.1" if use == "kafka" else "localhost"
        return ",".join(f"{host}:{m.ports[use]}" for m in self.cluster.store.load().of_role(GATEWAY))

    def log(self, name: str) -> str:
        """What a process has said so far."""
        return (self.cluster.directory / name / "log.txt").read_text(errors="replace")
