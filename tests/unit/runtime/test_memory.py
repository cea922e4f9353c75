"""What a role does not load, and that the allocator's bounds can be set anywhere."""

import contextlib
import resource
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from penstock_runtime import memory
from penstock_runtime.memory import bound_allocator, trim_allocator
from support.certificates import ClusterCa
from support.waiting import eventually


def test_http_comes_without_the_certificate_authorities() -> None:
    code = (
        "import sys, ssl\n"
        "from penstock_runtime.http import web\n"
        "import aiohttp.connector\n"
        "assert sys.modules['ssl'] is ssl\n"
        "assert aiohttp.connector.ssl is None and web.Application()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_the_allocator_takes_its_bounds() -> None:
    bound_allocator()
    trim_allocator()


async def test_memory_goes_back_once_for_much_that_came_free(monkeypatch: pytest.MonkeyPatch) -> None:
    trims: list[None] = []
    monkeypatch.setattr(memory, "trim_allocator", lambda: trims.append(None))
    monkeypatch.setattr(memory, "TRIM_REST_S", 0.01)
    trimmer = memory.Trimmer()
    for _ in range(2):
        trims.clear()
        for _ in range(1_000):
            trimmer.freed()
        await eventually(lambda: bool(trims), "it is given back")
        assert len(trims) == 1


@pytest.mark.parametrize("role", ["controller", "storage_node", "gateway"])
def test_no_role_loads_a_crypto_package(role: str) -> None:
    """It is installed where `penstock cert` is, and PySyncObj would load it."""
    code = (
        f"import sys, penstock_{role}.role\n"
        "bad = {n.split('.')[0] for n in sys.modules} & {'cryptography', 'OpenSSL', 'jwt', '_cffi_backend'}\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


class TestRoomForTls:
    """A TLS connection's buffer lies on pages that nobody has touched."""

    def test_it_is_made_each_time_where_that_is_quick(self) -> None:
        clock = Clock(took_s=0.0001)
        for _ in range(10):
            clock.room.make()
            clock.now_s += 0.01
        assert clock.trims == 10

    def test_it_takes_a_twentieth_of_the_time_where_it_is_slow(self) -> None:
        clock = Clock(took_s=0.005)
        for _ in range(1_000):
            clock.room.make()
            clock.now_s += 0.001
        assert 8 <= clock.trims <= 10, "of 1 s it had 50 ms"

    def test_a_connection_does_not_keep_what_the_handshake_before_it_has_used(self, tmp_path: Path) -> None:
        """Measured in a process of its own each: bytes that a connection costs at an allocator bounded as roles'."""
        assert bytes_each(tmp_path, room=True) < 0.75 * bytes_each(tmp_path, room=False)


class Clock:
    """A room whose trims take some time, of a clock that nothing else moves."""

    def __init__(self, took_s: float) -> None:
        self.now_s = 100.0
        self.trims = 0
        self._took_s = took_s
        self.room = memory.RoomForTls(lambda: self.now_s, self._trim)

    def _trim(self) -> None:
        self.trims += 1
        self.now_s += self._took_s


CONNECTIONS = 150
TLS_SERVER = """
import asyncio, socket, ssl, sys
import uvloop
from penstock_runtime.memory import RoomForTls, bound_allocator

bound_allocator()
# By a clock that stands still it takes no time, however busy the machine is, and is made for each.
room = RoomForTls(lambda: 0.0) if sys.argv[1] == "True" else None


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


async def main():
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2], sys.argv[3])
    listening = socket.create_server(("127.0.0.1", 0), backlog=100)
    listening.setblocking(False)
    print(listening.getsockname()[1], flush=True)
    kept = []
    while True:
        client, _ = await loop.sock_accept(listening)
        if room is not None:
            room.make()
        kept.append(await loop.connect_accepted_socket(Echo, client, ssl=context))


uvloop.run(main())
"""


def bytes_each(directory: Path, *, room: bool) -> float:
    """Resident memory that a connection costs a server which makes room for it, or does not."""
    files = ClusterCa().issue(directory / str(room), "gateway", "gateway-1")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    command = [sys.executable, "-c", TLS_SERVER, str(room), files["cert"], files["key"]]
    with contextlib.ExitStack() as open_ones, subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())

            def connect(count: int) -> int:
                for _ in range(count):
                    plain = socket.create_connection(("127.0.0.1", port), 30)
                    client = open_ones.enter_context(context.wrap_socket(plain))
                    client.sendall(b"a")
                    assert client.recv(1) == b"a"
                pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
                return pages * resource.getpagesize()

            before_bytes = connect(20)  # what it needs once
            return (connect(CONNECTIONS) - before_bytes) / CONNECTIONS
        finally:
            server.kill()
