"""Secrets of a secure cluster, everything that was said while it ran, and whether one stands in the other."""

from __future__ import annotations

import base64
import contextlib
import sys
import threading
from pathlib import Path
from subprocess import run

from penstock.connector import PLAINTEXT, Connector, Refused, call, load
from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, Member
from penstock_core.security.client_file import ClientFile

TIMEOUT_S = 60.0
COMMAND_TIMEOUT_S = 120.0
NAMED = {"admin.properties", "admin-java.properties", "key.pem", "ca-key.pem"}
"""Files that are there to hold secrets; each is its owner's alone."""


class Watch:
    """Looks at command lines and environments of all processes until it is ended."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                for file in ("cmdline", "environ"):
                    with contextlib.suppress(OSError):
                        self.seen.add((process / file).read_bytes())


class Session:
    """Commands against a cluster, and what they printed."""

    def __init__(self, cluster: LocalCluster, scratch: Path) -> None:
        self.cluster = cluster
        self.said: list[str] = []
        self._scratch = scratch

    def penstock(self, *words: str, expect: int | None = 0) -> None:
        """One command; None expects that it fails."""
        # The commands of certificates name theirs.
        here = [] if words[0] == "cert" else ["--dir", str(self.cluster.directory)]
        done = run(
            [sys.executable, "-m", "penstock.cli.main", *words, *here],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            stdin=None,
        )
        assert done.returncode == expect or (expect is None and done.returncode), (words, done)
        self.said += [done.stdout, done.stderr]

    def file(self, text: str) -> str:
        """A file with a secret."""
        path = self._scratch / f"secret-{len(list(self._scratch.iterdir()))}"
        path.touch(mode=0o600)
        path.write_text(text)
        return str(path)

    def sign_in(self, mechanism: str, name: str, secret: str) -> bool:
        """As a client at both listeners; whether it was let in."""
        gateway = self.cluster.state.of_role(GATEWAY)[0]
        lines = [
            f"bootstrap.servers=localhost:{gateway.ports['kafka']}",
            "security.protocol=SASL_SSL",
            f"sasl.mechanism={mechanism}",
            f"ssl.ca.location={self.cluster.directory / 'secure' / 'ca.pem'}",
        ]
        if mechanism == "OAUTHBEARER":
            lines.append(f"sasl.oauthbearer.token.file={self.file(secret)}")
        else:
            lines += [f"sasl.username={name}", f"sasl.password={secret}"]
        connector = Connector(ClientFile.parse("\n".join(lines), "client.properties"))
        ok = True
        for use in ("kafka", "direct"):
            with connector.open("localhost", gateway.ports[use], TIMEOUT_S) as connection:
                try:
                    connector.sign_in(connection)
                except Refused as error:
                    self.said.append(str(error))
                    ok = False
                else:
                    call(connection, 3, 4, b"\x00\x00\x00\x00\x00")
        return ok

    def http(self, member: Member, path: str, authorization: str = "") -> str:
        """What an HTTP port says, as it says it."""
        port = member.ports["http"]
        admin = load(self.cluster.directory / "secure" / "admin.properties")
        connector = PLAINTEXT if member.role == CONTROLLER else admin
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        if authorization:
            head += f"Authorization: {authorization}\r\n"
        told = b""
        with (
            contextlib.suppress(OSError),
            connector.open("127.0.0.1", port, TIMEOUT_S) as connection,
        ):
            connection.sendall(head.encode() + b"\r\n")
            while part := connection.recv(65_536):
                told += part
        self.said.append(told.decode("utf-8", "replace"))
        return self.said[-1]


def secrets_of(cluster: LocalCluster, words: dict[str, str], *tokens: str) -> dict[str, bytes]:
    """Every secret, by what it is: `words` and `tokens`, the admin's password, and each key of the cluster."""
    made = cluster.directory / "secure"
    (password,) = [
        line.partition("=")[2]
        for line in (made / "admin.properties").read_text().splitlines()
        if line.startswith("sasl.password=")
    ]
    found = {name: word.encode() for name, word in {"admin's password": password, **words}.items()}
    found |= {f"{name}, base64": base64.b64encode(word)[:-4] for name, word in found.items()}
    # A token is worth nothing without its signature.
    found |= {f"token {number}": token.rpartition(".")[2].encode() for number, token in enumerate(tokens)}
    keys = list(made.rglob("*key.pem"))
    assert len(keys) >= 5
    for path in keys:
        body = [line for line in path.read_bytes().splitlines() if b"-----" not in line]
        found[f"{path.parent.name}/{path.name}"] = max(body, key=len)
    return found
