"""All ports of every role in secure mode, and what they say to a stranger: nothing, a TLS alert, or health.

The ports are those on which the processes listen, by the kernel's word: one that is forgotten here cannot be. The
table stands in docs/security.md, and is compared with what is seen.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.local.cluster import LocalCluster
from penstock.local.plan import CONTROLLER, GATEWAY, NODE
from support.cluster import running_cluster, wait_until_ready

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ANSWER_S = 3.0
PAGE = Path(__file__).parents[2] / "docs" / "security.md"
KAFKA = struct.pack(">ihhih", 15, 18, 0, 7, 5) + b"scan!"
"""ApiVersions in plain."""
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
HTTP = b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\n\r\n"
RAFT = struct.pack("<II", 5, 0) + b"hello"
PROBES = {
    "garbage": bytes(range(128, 256)) * 8,
    "Kafka": KAFKA,
    "gRPC": HTTP2,
    "HTTP": HTTP,
    "Raft": RAFT,
}
NOTHING, ALERT, HEALTH, REFUSAL = "nothing", "TLS alert", "health", "400"
TLS_PROBE = "TLS without certificate"
NAMES = {CONTROLLER: "controller", NODE: "storage node", GATEWAY: "gateway"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """`local up --secure`, with a port for health alone, and no other HTTP port of controllers."""
    directory = tmp_path_factory.mktemp("ports") / "c"
    with running_cluster(directory, controllers=1, nodes=1, secure=True, steady=True) as running:
        state = running.store.load()
        for role in (CONTROLLER, NODE, GATEWAY):
            (member,) = state.of_role(role)
            given = state.settings.setdefault(role, {})
            if role == CONTROLLER:  # who asks for readiness asks there
                given |= {"health_bind": f"127.0.0.1:{member.ports['http']}", "http_bind": ""}
            else:
                given["health_bind"] = "127.0.0.1:0"
        with running.store.locked():
            running.store.save(state)
        for role in (CONTROLLER, NODE, GATEWAY):
            (member,) = state.of_role(role)
            running.kill(member.name, signal.SIGTERM)
            running.start(member.name)
        wait_until_ready(running)
        yield running


def listening_ports(pid: int) -> set[int]:
    """TCP ports on which a process listens."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(fd)  # noqa: PTH115
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and words[9] in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def all_ports(cluster: LocalCluster) -> dict[tuple[str, str], int]:
    """By role and use."""
    state = cluster.store.load()
    found: dict[tuple[str, str], int] = {}
    for member in state.members:
        known = {port: use for use, port in member.ports.items()}
        if member.role == CONTROLLER:
            known[member.ports["http"]] = "health"
        pid = state.process(member.name).pid
        assert pid is not None
        for port in listening_ports(pid):
            found[NAMES[member.role], known.get(port, "health")] = port
    return found


def received(sock: socket.socket) -> bytes:
    data = b""
    try:
        while part := sock.recv(65_536):
            data += part
    except (OSError, ssl.SSLError):
        pass
    return data


def told(data: bytes) -> str:
    """What a stranger learns of it."""
    if not data:
        return NOTHING
    # One record: alert (21), version 3.x, two bytes.
    if data[0] == 21 and data[1] == 3 and len(data) == 7:
        return ALERT
    if data.startswith(b"HTTP/1.") and b"metrics" not in data and b"cluster" not in data:
        return HEALTH
    return f"data: {data[:80]!r}"


def in_plain(port: int, probe: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as sock:
        sock.settimeout(ANSWER_S)
        sock.sendall(probe)
        return told(received(sock))


def over_tls(port: int, *, http2: bool) -> str:
    """Handshake without a certificate; then what each protocol begins with, and an API before signing in."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if http2:
        context.set_alpn_protocols(["h2"])
    said = b""
    for probe in (PROBES["garbage"], RAFT, struct.pack(">ihhih", 15, 3, 0, 7, 5) + b"scan!"):
        try:
            with (
                socket.create_connection(("127.0.0.1", port), ANSWER_S) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as sock,
            ):
                sock.settimeout(ANSWER_S)
                sock.sendall(probe)
                said += received(sock)
        except (OSError, ssl.SSLError):
            pass
    if not said or (http2 and len(said) < 400 and b"HTTP" not in said):
        return NOTHING  # of HTTP/2: settings and goodbye, the frames that begin and end any connection
    return REFUSAL if said.startswith((b"HTTP/1.1 400", b"HTTP/1.0 400")) else told(said)


def table(cells: dict[tuple[str, str], dict[str, str]]) -> str:
    columns = [*PROBES, TLS_PROBE]
    lines = [f"| port | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for (role, use), row in sorted(cells.items()):
        lines.append(f"| {role}, {use} | {' | '.join(row[c] for c in columns)} |")
    return "\n".join(lines)


def test_a_stranger_learns_nothing_from_any_port(cluster: LocalCluster) -> None:
    ports = all_ports(cluster)
    assert {role for role, _ in ports} == set(NAMES.values())
    cells = {}
    for (role, use), port in ports.items():
        row = {name: in_plain(port, probe) for name, probe in PROBES.items()}
        row[TLS_PROBE] = over_tls(port, http2=use == "grpc")
        wanted = {"health": {NOTHING, HEALTH}, "http": {NOTHING, ALERT, REFUSAL}}.get(use, {NOTHING, ALERT})
        assert set(row.values()) <= wanted, (role, use, row)
        assert use == "health" or REFUSAL not in [row[name] for name in PROBES], (role, use, row)
        # Whether an alert is sent before the end depends on who reads first: both say nothing.
        cells[role, use] = {name: NOTHING if cell == ALERT else cell for name, cell in row.items()}
    assert table(cells) in PAGE.read_text(), table(cells)


def test_health_says_that_and_nothing_else(cluster: LocalCluster) -> None:
    for (_, use), port in all_ports(cluster).items():
        if use == "health":
            for path, status in (("/readyz", b"200"), ("/metrics", b"404"), ("/v1/cluster", b"404")):
                with socket.create_connection(("127.0.0.1", port), ANSWER_S) as sock:
                    sock.settimeout(ANSWER_S)
                    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                    answer = received(sock)
                assert answer.split(b" ")[1] == status, (path, answer)
                assert len(answer.partition(b"\r\n\r\n")[2]) < 100, answer


def test_nmap_finds_no_service_in_plain_but_health(cluster: LocalCluster) -> None:
    nmap = shutil.which("nmap")
    if nmap is None:
        pytest.skip("no nmap")
    ports = all_ports(cluster)
    command = [nmap, "-Pn", "-n", "-sT", "-sV", "--version-intensity", "1", "--host-timeout", "240s"]
    numbers = ",".join(map(str, ports.values()))
    done = subprocess.run(
        [*command, "-p", numbers, "127.0.0.1"], capture_output=True, text=True, timeout=300, check=True
    )
    health = {port for (_, use), port in ports.items() if use == "health"}
    for line in done.stdout.splitlines():
        number, _, rest = line.partition("/tcp")
        if number.isdigit() and int(number) not in health:
            service = rest.split()[1] if len(rest.split()) > 1 else ""
            assert "http" not in service or service.startswith("ssl"), line
            assert "kafka" not in line.lower(), line


@pytest.mark.parametrize(
    ("role", "setting", "flags"),
    [
        ("gateway", "grpc_bind", ("--grpc-bind", "0.0.0.0:0", "--gateway-id", "g")),
        ("gateway", "http_bind", ("--http-bind", "0.0.0.0:0", "--gateway-id", "g")),
        (
            "gateway",
            "listener A",
            ("--listeners", '[{"name": "A", "bind": "0.0.0.0:0"}]', "--gateway-id", "g"),
        ),
        ("storage_node", "grpc_bind", ("--grpc-bind", "0.0.0.0:0")),
        ("storage_node", "http_bind", ("--http-bind", "[::]:0")),
        ("controller", "raft_bind", ("--raft-bind", "0.0.0.0:0", "--controller-id", "1")),
        ("controller", "grpc_bind", ("--grpc-bind", "0.0.0.0:0", "--controller-id", "1")),
    ],
)
def test_a_wildcard_bind_without_permission_does_not_start(
    tmp_path: Path, role: str, setting: str, flags: tuple[str, ...]
) -> None:
    more: tuple[str, ...] = ("--controllers", "127.0.0.1:9")
    if role == "controller":
        peers = "1@127.0.0.1:9"
        more = ("--raft-peers", peers, "--controllers", peers)
    command = [sys.executable, "-m", f"penstock_{role}", "--data-dir", str(tmp_path), *more, *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    said = done.stdout + done.stderr
    assert done.returncode != 0, said
    assert "would open a plaintext port to other machines" in said, said
    assert setting in said
