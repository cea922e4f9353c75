"""Raft under TLS with real controllers: who is let in, who is not and what is said of it, and new certificates."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2
from penstock_runtime.grpc_tools import ChannelPool
from penstock_runtime.security.refused import serial_in_pem
from support import raft_stranger as stranger
from support.certificates import ClusterCa, as_flag
from support.controllers import Controllers
from support.raft_stranger import Crowd, Stranger

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 90


@pytest.fixture(scope="module")
def ca() -> ClusterCa:
    return ClusterCa()


@pytest.fixture
def controllers(tmp_path: Path, ca: ClusterCa) -> Iterator[Controllers]:
    quorum = Controllers(tmp_path, 3, http_bind="127.0.0.1:0", raft_silence_ms=3_000)
    for i in (1, 2, 3):
        quorum.settings_of[i] = {"tls": as_flag(ca.issue(tmp_path / f"tls-{i}", "controller", str(i)))}
    yield quorum
    quorum.kill_all()


@pytest_asyncio.fixture
async def channels(ca: ClusterCa, tmp_path: Path) -> AsyncIterator[ChannelPool]:
    pool = ChannelPool(tls=ca.files(tmp_path / "admin", "admin", "test"))
    yield pool
    await pool.close()


async def commit(controllers: Controllers, channels: ChannelPool) -> None:
    """A change of the metadata that a majority has to take."""
    request = api.AllocateProducerIdsRequest(owner="test")
    await controllers.client(channels).call("AllocateProducerIds", request, PATIENCE_S * 1000)


async def until(condition: Callable[[], bool], what: str) -> None:
    """Other processes know nothing of our events."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < PATIENCE_S, what
        await asyncio.sleep(0.05)


async def linked(controllers: Controllers, channels: ChannelPool, count: int = 3) -> int:
    """Wait until the active controller has links to so many, itself included; its id."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            active = await controllers.active_id(channels)
            if active > 0:
                members = (await controllers.describe(channels, active)).members
                if sum(m.reachable or m.controller_id == active for m in members) >= count:
                    return active
            await asyncio.sleep(0.05)


async def test_three_controllers_form_a_quorum(controllers: Controllers, channels: ChannelPool) -> None:
    controllers.start_all()
    active = await linked(controllers, channels)
    await commit(controllers, channels)
    controllers.kill(active)
    await commit(controllers, channels)
    controllers.start(active)
    await linked(controllers, channels)


@pytest.mark.parametrize(
    ("make", "at_the_peer", "at_itself"),
    [
        (lambda ca, d: None, "it speaks no TLS; give it a certificate by [tls]", ""),
        (
            lambda ca, d: ClusterCa().issue(d, "controller", "3"),
            "it refuses this controller's certificate",
            "its certificate is refused (self-signed certificate in certificate chain)",
        ),
        (
            lambda ca, d: ca.issue(d, "controller", "3", domain="elsewhere.test"),
            "the certificate is that of spiffe://elsewhere.test/controller/3, not of controller 3 of penstock.test",
            "",
        ),
    ],
    ids=["plain", "another CA", "another cluster"],
)
async def test_a_controller_that_does_not_belong_there_is_refused(
    controllers: Controllers,
    channels: ChannelPool,
    ca: ClusterCa,
    tmp_path: Path,
    make: Callable[[ClusterCa, Path], dict[str, str] | None],
    at_the_peer: str,
    at_itself: str,
) -> None:
    table = make(ca, tmp_path / "other")
    controllers.settings_of[3] = {} if table is None else {"tls": as_flag(table)}
    controllers.unheard = {3}
    controllers.start_all()
    await linked(controllers, channels, 2)
    await commit(controllers, channels)
    await until(lambda: at_the_peer in controllers.log(1), controllers.log(1))
    await until(lambda: at_itself in controllers.log(3), controllers.log(3))
    active = await linked(controllers, channels, 2)
    members = (await controllers.describe(channels, active)).members
    assert [m.controller_id for m in members if m.reachable and m.controller_id == 3] == []


@pytest.mark.parametrize(
    ("role", "name", "said"),
    [
        ("storage-node", "3", "is that of a storage-node; give one of a controller"),
        ("controller", "2", "is that of controller 2, this is controller 3; give it its own"),
        ("controller", "*", "is that of controller *, this is controller 3; give it its own"),
    ],
)
def test_a_controller_with_anothers_certificate_does_not_start(
    controllers: Controllers, ca: ClusterCa, tmp_path: Path, role: str, name: str, said: str
) -> None:
    controllers.settings_of[3] = {"tls": as_flag(ca.issue(tmp_path / "other", role, name))}
    controllers.start(3)
    assert controllers.processes.pop(3).wait(PATIENCE_S) != 0
    assert said in controllers.log(3)


class TlsStranger(Stranger):
    """A stranger who has some certificate, and says hello as controller 3."""

    def __init__(self, port: int, table: dict[str, str] | None, ca: bytes) -> None:
        super().__init__(port)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=ca.decode())
        if table is not None:
            context.load_cert_chain(table["cert"], table["key"])
        self.socket = context.wrap_socket(self.socket)


async def test_strangers_are_refused_and_the_log_says_why(
    controllers: Controllers, channels: ChannelPool, ca: ClusterCa, tmp_path: Path
) -> None:
    """No certificate, another CA's, another role's, another controller's, an expired one; each in one line."""
    controllers.start_all()
    await linked(controllers, channels)
    other = ClusterCa()
    minus_hour = -datetime.timedelta(hours=1)
    for number, (table, said) in enumerate(
        [
            (None, "it shows no certificate; give it one by [tls]"),
            (other.issue(tmp_path / "a", "controller", "3"), "its certificate is refused (unable to get"),
            (
                ca.issue(tmp_path / "b", "storage-node", "3"),
                "the certificate is that of spiffe://penstock.test/storage-node/3, not of controller 3",
            ),
            (
                ca.issue(tmp_path / "c", "controller", "2"),
                "the certificate is that of spiffe://penstock.test/controller/2, not of controller 3",
            ),
            (
                ca.issue(tmp_path / "d", "controller", "3", good_for=minus_hour),
                "its certificate is refused (certificate has expired)",
            ),
            (ca.issue(tmp_path / "e", "controller", "3", uris=[]), "the certificate names no role"),
        ]
    ):

        def visit(table: dict[str, str] | None = table) -> bytes | None:
            # TLS 1.3: who dials hears of the refusal only when he reads.
            visitor = TlsStranger(controllers.raft_ports[0], table, ca.pem)
            try:
                visitor.send(stranger.hello(3, 1), stranger.term_notice(7))
                return visitor.receive()
            except ssl.SSLError:
                return None
            finally:
                visitor.close()

        assert await asyncio.to_thread(visit) is None, f"case {number}"

        def told(said: str = said) -> list[str]:
            # The audit log, among the log here, has it too, and first: of one event the log has a line in a second.
            return [line for line in controllers.log(1).splitlines() if said in line and line[0] != "{"]

        await until(lambda told=told: bool(told()), f"{said!r} in {controllers.log(1)}")  # type: ignore[misc]
        assert len(told()) == 1
    # A controller's certificate is good for what it is, and no more.
    good = ca.issue(tmp_path / "f", "controller", "3")
    controllers.kill(3)

    def as_three() -> bytes | None:
        visitor = TlsStranger(controllers.raft_ports[0], good, ca.pem)
        try:
            visitor.send(stranger.hello(3, 1))
            return visitor.receive()
        finally:
            visitor.close()

    assert await asyncio.to_thread(as_three) is not None
    await commit(controllers, channels)
    # Garbage and silence do not get as far.
    for first in (
        b"",
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
        stranger.hello(3, 1),
    ):
        visitor = Stranger(controllers.raft_ports[0])
        visitor.send(first)
        assert await asyncio.to_thread(visitor.is_closed_within, 30)
        visitor.close()
    controllers.start(3)
    await linked(controllers, channels)


def client_hello() -> bytes:
    """The first word of a handshake, which costs the other side a key and a signature."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="penstock.test").do_handshake()
    return outgoing.read()


async def test_a_flood_of_handshakes_shuts_nobody_out(
    controllers: Controllers, channels: ChannelPool
) -> None:
    """They run on the thread that holds elections: a few a turn, the oldest makes room."""
    controllers.start_all()
    await linked(controllers, channels)
    term = max([(await controllers.describe(channels, i)).term for i in (1, 2, 3)])
    with Crowd(controllers.raft_ports[:2], first=client_hello(), count=50) as crowd:
        while crowd.opened < 1_000:  # noqa: ASYNC110 - another thread
            await asyncio.sleep(0.01)
        await commit(controllers, channels)
        assert max([(await controllers.describe(channels, i)).term for i in (1, 2, 3)]) == term, "no election"
        controllers.kill(3)
        controllers.start(3)
        await linked(controllers, channels)
        await commit(controllers, channels)


async def test_new_certificates_come_into_use_without_an_election(
    controllers: Controllers, channels: ChannelPool, ca: ClusterCa, tmp_path: Path
) -> None:
    """Twice, while commands flow; a bad one in between is not taken."""
    controllers.start_all()
    await linked(controllers, channels)
    term = max([(await controllers.describe(channels, i)).term for i in (1, 2, 3)])
    ends = asyncio.Event()
    commits = 0

    async def work() -> None:
        nonlocal commits
        while not ends.is_set():
            request = api.AllocateProducerIdsRequest(owner="test")
            await controllers.client(channels).call("AllocateProducerIds", request, 10_000)
            commits += 1

    async def until_said(controller_id: int, what: str, count: int) -> None:
        await until(
            lambda: controllers.log(controller_id).count(what) == count, controllers.log(controller_id)
        )

    in_use, kept = "new certificate in use for new connections", "the certificate of before stays in use"
    working = asyncio.create_task(work())
    for turn in (1, 2):
        for i in (1, 2, 3):
            ca.issue(tmp_path / f"tls-{i}", "controller", str(i))
        for i in (1, 2, 3):
            # A look may fall between the certificate's file and its key's: that is said, and the next one takes both.
            await until_said(i, in_use, turn)
    said = controllers.log(1).count(kept)
    key = tmp_path / "tls-1" / "key.pem"
    good = key.read_bytes()
    key.write_bytes(b"no key at all")
    await until_said(1, kept, said + 1)
    key.write_bytes(good)
    await until_said(1, in_use, 3)
    ends.set()
    await working
    assert commits > 20
    assert max([(await controllers.describe(channels, i)).term for i in (1, 2, 3)]) == term, "no election"
    # New connections use them: the peers come again.
    controllers.kill(1 if await controllers.active_id(channels) != 1 else 2)
    await commit(controllers, channels)


async def test_a_refused_certificate_links_no_controller_until_it_has_another(
    controllers: Controllers, channels: ChannelPool, ca: ClusterCa, tmp_path: Path
) -> None:
    controllers.start_all()
    active = await linked(controllers, channels)
    other = 3 if active != 3 else 2
    serials = {i: serial_in_pem((tmp_path / f"tls-{i}" / "cert.pem").read_bytes()) for i in (active, other)}

    async def refuse(serial: str) -> api.AlterRefusedCertificatesResponse:
        record = metadata_pb2.RefusedCertificateRecord(serial=serial, reason="stolen")
        request = api.AlterRefusedCertificatesRequest(changes=[record])
        reply: api.AlterRefusedCertificatesResponse = await controllers.client(channels).call(
            "AlterRefusedCertificates", request, PATIENCE_S * 1000
        )
        return reply

    assert "uses now" in (await refuse(serials[active])).error.message
    reply = await refuse(serials[other])
    assert [(r.serial, r.reason) for r in reply.refused] == [(serials[other], "stolen")]
    line = f"certificate {serials[other]} is refused (stolen); issue another one"
    await until(lambda: line in controllers.log(active), controllers.log(active))

    async def reaches() -> bool:
        members = (await controllers.describe(channels, active)).members
        return any(m.controller_id == other and m.reachable for m in members)

    await until(lambda: line in controllers.log(active), controllers.log(active))
    for _ in range(int(PATIENCE_S / 0.05)):
        if not await reaches():
            break
        await asyncio.sleep(0.05)
    assert not await reaches()
    await commit(controllers, channels)
    controllers.kill(other)
    controllers.start(other)
    await until(lambda: controllers.log(other).count("listening") > 1, controllers.log(other))
    await commit(controllers, channels)
    assert not await reaches()
    ca.issue(tmp_path / f"tls-{other}", "controller", str(other))
    await linked(controllers, channels)
