"""TLS at a listener: handshakes, certificates of clients, new files, and those who speak something else."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop
from structlog.testing import capture_logs

from penstock_core.metadata.image import Endpoint
from penstock_core.metadata.security import RefusedCertificate
from penstock_core.security.principal import ANONYMOUS, user
from penstock_frontend.listener.admission import ConnectionCaps
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.listener import ListenerLimits, Response
from penstock_frontend.sign_in.certified import Certified, Holders
from penstock_runtime import handshakes
from penstock_runtime.addresses import StartupError
from penstock_runtime.door import ListenerTls
from penstock_runtime.security import listener_tls
from penstock_runtime.security.listener_tls import ListenerTlsFiles
from penstock_runtime.security.refused import RefusedCertificates, serial_in_pem
from support.listening import (
    Handler,
    Run,
    closed_by_peer,
    connected,
    echo,
    listening,
    metric,
    read_response,
    request,
)
from support.waiting import eventually


class Files:
    """A listener's files, issued by a CA, and one of clients'."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = trustme.CA()
        self.serials: dict[str, str] = {}
        self.client_ca = trustme.CA()
        self.issue()
        self.client_ca.cert_pem.write_to_path(str(directory / "client-ca.pem"))

    def issue(self, key_type: trustme.KeyType = trustme.KeyType.ECDSA) -> None:
        """A new certificate in the place of the old one."""
        cert = self.ca.issue_cert("localhost", "127.0.0.1", key_type=key_type)
        chain = b"".join(each.bytes() for each in cert.cert_chain_pems)
        for name, data in (("cert.pem", chain), ("key.pem", cert.private_key_pem.bytes())):
            new = self.directory / (name + ".new")
            new.touch(0o600)
            new.write_bytes(data)
            os.replace(new, self.directory / name)  # noqa: PTH105

    def tls(self, client_auth: str = "none") -> ListenerTls:
        """The table of settings."""
        return ListenerTls(
            cert=self.directory / "cert.pem",
            key=self.directory / "key.pem",
            client_ca=None if client_auth == "none" else self.directory / "client-ca.pem",
            client_auth=client_auth,  # type: ignore[arg-type]
        )

    def client(self, name: str | None = None) -> ssl.SSLContext:
        """A client's context, with a certificate of that common name."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if name is not None:
            cert = self.client_ca.issue_cert("client.test", common_name=name)
            cert.configure_cert(context)
            self.serials[name] = serial_in_pem(cert.cert_chain_pems[0].bytes())
        return context


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def dials(
    endpoint: Endpoint, context: ssl.SSLContext, host: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A new connection from one of loopback's addresses."""
    return await asyncio.open_connection(
        endpoint.host, endpoint.port, ssl=context, server_hostname="localhost", local_addr=(host, 0)
    )


async def asks(endpoint: Endpoint, context: ssl.SSLContext | None, body: bytes = b"hi") -> bytes:
    """The answer of the echo over a new connection."""
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context, limit=2**21)
    try:
        writer.write(request(1, body))
        return (await read_response(reader))[1]
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def test_requests_go_through_tls_small_and_large(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        async with listening(echo, tls=tls.context, security="SSL", **_table(files)) as (
            _,
            handler,
            where,
            _,
        ):
            assert await asks(where, files.client()) == b"hi"
            large = bytes(range(256)) * 8_000
            assert await asks(where, files.client(), large) == large
            assert handler.connections[0].principal == ANONYMOUS

    run(scenario())


def _table(files: Files, client_auth: str = "none") -> dict[str, Any]:
    return {"tls_settings": files.tls(client_auth).model_dump(mode="json")}


def test_a_clients_certificate_makes_a_user(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls("required"))
        certified = Certified("A", "RULE:^.*CN=([a-z]+)(,.*)?$/$1/U")
        table = _table(files, "required")
        async with listening(echo, tls=tls.context, certified=certified, security="SSL", **table) as (
            _,
            handler,
            where,
            life,
        ):
            assert await asks(where, files.client("alice")) == b"hi"
            assert handler.connections[0].principal == user("ALICE")
            for context in (files.client(), files.client("nobody 4711")):
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await asks(where, context)
            stranger = files.client()
            trustme.CA().issue_cert("x.test", common_name="alice").configure_cert(stranger)
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asks(where, stranger)
            assert len(handler.frames) == 1
            assert metric(life, "penstock_kafka_bad_frames_total") == 3

    run(scenario())


def test_of_those_with_a_certificate_that_ask_for_nothing_the_oldest_of_a_user_go(
    run: Run, files: Files
) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls("required"))
        certified = Certified("A", "RULE:^.*CN=([a-z]+)(,.*)?$/$1/U")
        limits = ListenerLimits(caps=ConnectionCaps(tls_signed_in_strangers_max=3))
        table = _table(files, "required")
        async with (
            contextlib.AsyncExitStack() as stack,
            listening(echo, limits, tls=tls.context, certified=certified, security="SSL", **table) as (
                listener,
                _,
                where,
                life,
            ),
        ):
            contexts = {name: files.client(name) for name in ("alice", "mallory")}

            async def come(user: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
                before = {*listener.connections}
                r, w = await asyncio.open_connection(where.host, where.port, ssl=contexts[user])
                stack.callback(w.close)
                await eventually(lambda: {*listener.connections} - before, "it is here")
                return r, w

            at_work = await come("mallory")
            at_work[1].write(request(1, b"hi"))
            assert (await read_response(at_work[0]))[0] == 1
            alice = await come("alice")
            greedy = [await come("mallory") for _ in range(5)]
            for r, _ in greedy[:3]:
                with contextlib.suppress(ConnectionError):
                    assert await r.read(1) == b""
            for n, (r, w) in enumerate([at_work, alice, *greedy[3:]]):
                w.write(request(10 + n))
                assert (await read_response(r))[0] == 10 + n
            assert metric(life, "penstock_kafka_connections_refused_total") == 3

    run(scenario())


@pytest.mark.parametrize("over_tls", [True, False])
def test_nothing_is_left_of_a_connection_that_ended_until_somebody_collects_it(
    files: Files, over_tls: bool
) -> None:
    """A circle with uvloop's TLS would stay, 35 KB and more each, until a full collection; and those are rare."""

    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        table: dict[str, Any] = {"tls": tls.context, "security": "SSL", **_table(files)} if over_tls else {}
        async with listening(echo, **table) as (listener, handler, where, _):
            context = files.client() if over_tls else None
            gc.collect()
            before = _alive(Connection)  # other tests'
            for _ in range(3):
                assert await asks(where, context) == b"hi"
            reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
            await eventually(lambda: listener.connections, "the one that says nothing")
            next(iter(listener.connections)).abort("test")
            with contextlib.suppress(OSError):
                assert await reader.read(1) == b""
            writer.close()
            await eventually(lambda: not listener.connections, "all are gone")
            handler.connections.clear()
            await eventually(lambda: _alive(Connection) <= before, "nothing is left", 10.0)

    _run_without_collections(scenario())


@pytest.mark.parametrize("says", ["nothing", "a hello"])
def test_nothing_is_left_of_strangers_that_were_sent_away_until_somebody_collects_it(
    files: Files, says: str
) -> None:
    """Nor of a handshake that was left, or that failed. Ten thousand dials took 30 MB, 3 KB each."""

    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(
            handshake_timeout_ms=500, caps=ConnectionCaps(tls_strangers_max=5, tls_handshakes_max=2)
        )
        table: dict[str, Any] = {"tls": tls.context, "security": "SSL", **_table(files)}
        async with listening(echo, limits, **table) as (_, _handler, where, life):
            gc.collect()
            before = _alive(asyncio.Task)
            others: list[socket.socket] = []
            for _ in range(40):
                others.append(socket.create_connection((where.host, where.port), 60))
                if says == "a hello":
                    others[-1].sendall(_hello(files.client()))
                await asyncio.sleep(0)
            await eventually(
                lambda: metric(life, "penstock_kafka_connections_refused_total") >= 30, "most are sent away"
            )
            for each in others:
                each.close()
            await eventually(lambda: _alive(asyncio.Task) <= before, "nothing is left", 10.0)

    _run_without_collections(scenario())


def _run_without_collections(scenario: Coroutine[Any, Any, None]) -> None:
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario)
    finally:
        gc.enable()


def _alive(kind: type) -> int:
    return sum(1 for each in gc.get_objects() if isinstance(each, kind))


def test_a_session_of_a_certificate_that_has_ended_is_not_resumed(run: Run, files: Files) -> None:
    """TLS 1.2 does without the certificate then, so nobody else looks at its end."""
    now_s = time.time()

    async def scenario() -> None:
        nonlocal now_s
        tls = ListenerTlsFiles("A", files.tls("required"))
        certified = Certified("A", "DEFAULT")
        table = _table(files, "required")
        async with listening(
            echo, tls=tls.context, certified=certified, wall_s=lambda: now_s, security="SSL", **table
        ) as (_, handler, where, _):
            context = files.client("alice")
            context.maximum_version = ssl.TLSVersion.TLSv1_2

            def ask(session: ssl.SSLSession | None) -> tuple[bytes, ssl.SSLSession | None, bool | None]:
                with (
                    socket.create_connection((where.host, where.port), 60) as raw,
                    context.wrap_socket(raw, server_hostname="localhost", session=session) as made,
                ):
                    made.sendall(request(1, b"hi"))
                    with made.makefile("rb") as stream:
                        got = stream.read(10), made.session, made.session_reused
                    if got[0]:
                        # As stock clients end; OpenSSL forgets the session of who does not.
                        made.unwrap().close()
                    return got

            answer, session, resumed = await asyncio.to_thread(ask, None)
            assert answer.endswith(b"hi") and not resumed
            answer, _, resumed = await asyncio.to_thread(ask, session)
            assert answer.endswith(b"hi") and resumed
            now_s += 2_000 * 365 * 86_400  # those of trustme last until 3000
            with contextlib.suppress(OSError):
                answer, _, resumed = await asyncio.to_thread(ask, session)
                assert not answer
            assert len(handler.frames) == 2

    run(scenario())


def test_sessions_of_tls_1_2_are_forgotten_when_there_are_many(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener_tls, "_SESSIONS_MAX", 50)

    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        async with listening(echo, tls=tls.context, security="SSL", **_table(files)) as (_, _, where, _):
            context = files.client()
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            before = tls.context()
            assert await asks(where, context) == b"hi"
            assert not tls.reload()
            assert tls.context() is before
            for _ in range(50):
                assert await asks(where, context) == b"hi"
            assert not tls.reload()  # no new files
            assert tls.context() is not before
            assert await asks(where, context) == b"hi"

    run(scenario())


def test_a_refused_certificate_opens_nothing_and_what_it_opened_is_closed(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls("required"))
        refused = RefusedCertificates()
        certified = Certified("A", "DEFAULT", Holders(refused))
        table = _table(files, "required")
        async with listening(echo, tls=tls.context, certified=certified, security="SSL", **table) as (
            _,
            _,
            where,
            _,
        ):
            lost = files.client("alice")
            assert await asks(where, lost) == b"hi"
            readers = {}
            async with contextlib.AsyncExitStack() as stack:
                for name in ("bob", "carol"):
                    reader, writer = await asyncio.open_connection(
                        where.host, where.port, ssl=files.client(name)
                    )
                    stack.callback(writer.close)
                    writer.write(request(1, b"hi"))
                    await read_response(reader)
                    readers[name] = reader
                refused.take({files.serials[name]: RefusedCertificate("", 0) for name in ("alice", "bob")})
                assert await asyncio.wait_for(readers["bob"].read(), 30) == b""
                with pytest.raises((OSError, asyncio.IncompleteReadError)):
                    await asks(where, lost)
                refused.take({})
                assert await asks(where, lost) == b"hi"
                assert not readers["carol"].at_eof()

    run(scenario())


def test_a_certificate_that_is_requested_need_not_come(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls("requested"))
        table = _table(files, "requested")
        certified = Certified("A", "DEFAULT")
        async with listening(echo, tls=tls.context, certified=certified, security="SSL", **table) as (
            _,
            handler,
            where,
            _,
        ):
            await asks(where, files.client())
            await asks(where, files.client("bob"))
            first, second = (c.principal for c in handler.connections)
            assert first == ANONYMOUS
            assert second.name.startswith("CN=bob,")

    run(scenario())


def test_new_files_are_for_new_connections_and_bad_ones_for_none(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        async with listening(echo, tls=tls.context, security="SSL", **_table(files)) as (_, _, where, _):
            reader, writer = await asyncio.open_connection(where.host, where.port, ssl=files.client())
            before = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            files.issue(trustme.KeyType.RSA)
            assert tls.reload()
            (files.directory / "key.pem").write_bytes(b"nonsense")
            assert not tls.reload()
            assert "listener A" in tls.fault
            new_reader, new_writer = await asyncio.open_connection(where.host, where.port, ssl=files.client())
            assert new_writer.get_extra_info("ssl_object").getpeercert(binary_form=True) != before
            for r, w in ((reader, writer), (new_reader, new_writer)):
                w.write(request(2, b"both"))
                assert await read_response(r) == (2, b"both")
                w.close()

    run(scenario())


def test_who_speaks_no_tls_and_who_speaks_it_elsewhere_is_told_of_in_the_log(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        async with listening(echo, tls=tls.context, security="SSL", **_table(files)) as (
            _,
            handler,
            where,
            life,
        ):
            async with connected(where) as (reader, writer):
                writer.write(request(1))
                assert await closed_by_peer(reader)
            async with connected(where) as (reader, writer):  # a probe
                writer.write_eof()
                assert await closed_by_peer(reader)
            async with connected(where) as (reader, writer):  # TLS that is none
                writer.write(b"\x16\x03\x01\x00\x05hello")
                # An alert, then the end.
                while data := await asyncio.wait_for(reader.read(1000), 60):
                    assert data[:1] == b"\x15"
            assert await asks(where, files.client()) == b"hi"
            assert len(handler.frames) == 1
            assert metric(life, "penstock_kafka_bad_frames_total") == 2
        async with listening(echo) as (_, _, where, _):
            with pytest.raises((OSError, asyncio.IncompleteReadError)):
                await asks(where, files.client())

    with capture_logs() as lines:
        run(scenario())
    said = str(lines)
    assert "it speaks no TLS; the listener is SSL" in said
    assert "this is TLS; the listener is PLAINTEXT" in said


def _hello(context: ssl.SSLContext) -> bytes:
    """A client's first message."""
    inside, outside = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(inside, outside, server_hostname="localhost").do_handshake()
    return outside.read()


def test_handshakes_that_are_left_take_few_places_and_make_room_for_another_address(
    run: Run, files: Files
) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(caps=ConnectionCaps(tls_handshakes_max=3))
        async with (
            contextlib.AsyncExitStack() as stack,
            listening(echo, limits, tls=tls.context, security="SSL", **_table(files)) as (
                listener,
                _,
                where,
                life,
            ),
        ):
            context = files.client()
            hello = _hello(context)
            left = []
            for _ in range(8):
                reader, writer = await stack.enter_async_context(connected(where, "127.0.0.9"))
                writer.write(hello)
                left.append(reader)
            line = listener._doorway._handshakes
            await eventually(lambda: len(line) == 8, "all wait")
            assert line._begun.count == 3
            # Answered are those that began, and no others: what waits has cost nothing yet.
            assert sum([len(reader._buffer) > 0 for reader in left]) <= 3  # type: ignore[attr-defined]
            assert await asks(where, context) == b"hi"
            assert await asks(where, context) == b"hi"
            assert metric(life, "penstock_kafka_connections_refused_total") >= 1

    run(scenario())


def test_many_clients_of_one_address_that_come_together_are_all_served_with_few_handshakes_at_a_time(
    run: Run, files: Files
) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(caps=ConnectionCaps(tls_handshakes_max=2))
        async with listening(echo, limits, tls=tls.context, security="SSL", **_table(files)) as (
            listener,
            _,
            where,
            life,
        ):
            context = files.client()
            assert await asyncio.gather(*[asks(where, context) for _ in range(12)]) == [b"hi"] * 12
            assert not len(listener._doorway._handshakes)
            assert metric(life, "penstock_kafka_bad_frames_total") == 0

    run(scenario())


def test_clients_that_come_back_together_go_through_one_after_the_other_and_none_is_sent_away(
    run: Run, files: Files
) -> None:
    """Each has a place until it has signed in. Of a thousand 500 were sent away in the middle of it."""

    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(
            caps=ConnectionCaps(tls_handshakes_max=2, tls_places_max=4, tls_greeted_max=4)
        )
        most = 0

        def admits(connection: Connection, frame: bytearray) -> Response:
            nonlocal most
            waiting = sum(not each.admitted for each in listener.connections)
            most = max(most, waiting)
            connection.admit(user("alice"))
            return [bytes(frame[4:8])]

        table: dict[str, Any] = {"security": "SASL_SSL", **_table(files)}
        async with listening(echo, limits, Handler(admits), tls.context, **table) as (
            listener,
            _,
            where,
            life,
        ):
            context = files.client()
            stack = contextlib.AsyncExitStack()
            async with stack:

                async def comes(number: int) -> None:
                    reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
                    stack.callback(writer.close)
                    writer.write(request(number))
                    assert (await read_response(reader))[0] == number
                    writer.write(request(100 + number, b"hi"))
                    assert await read_response(reader) == (100 + number, b"hi")

                await asyncio.gather(*(comes(number) for number in range(30)))
                assert most <= 4 + 1  # the next one begins in the step in which one is done
                assert not listener._doorway._handshakes._greeted.count
                assert metric(life, "penstock_kafka_connections_refused_total") == 0

    run(scenario())


def test_an_address_whose_handshakes_are_for_nothing_is_slowed_down_and_others_are_served(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that leaves at once, and one that does not know our CA. So slow here that the third one is sent away."""
    monkeypatch.setattr(handshakes, "PACED_PER_S", 0.001)
    monkeypatch.setattr(handshakes, "WASTED_PER_S", 0.001)

    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(handshake_timeout_ms=5_000)
        async with listening(echo, limits, tls=tls.context, security="SSL", **_table(files)) as (
            listener,
            _,
            where,
            life,
        ):
            context, knows_no_ca = files.client(), ssl.create_default_context()

            async def comes(how: ssl.SSLContext) -> bool:
                try:
                    _, writer = await dials(where, how, "127.0.0.9")
                except OSError:
                    return False
                writer.close()
                return True

            for _ in range((handshakes.WASTED_BURST + 2) // 2):
                await comes(context)
                await comes(knows_no_ca)
            waste = listener._doorway._pace._of
            await eventually(lambda: waste["127.0.0.9"].forgiven < 0, "it is seen")
            await comes(context)  # it may be the first one that has its time
            assert not await comes(context)  # it would wait for a quarter of an hour
            assert metric(life, "penstock_kafka_bad_frames_total") >= handshakes.WASTED_BURST // 2
            assert await asks(where, context) == b"hi"

    run(scenario())


def test_of_those_that_have_done_their_handshake_and_say_nothing_few_are_kept(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(caps=ConnectionCaps(tls_greeted_max=3))
        async with (
            contextlib.AsyncExitStack() as stack,
            listening(echo, limits, tls=tls.context, security="SSL", **_table(files)) as (
                listener,
                _,
                where,
                _,
            ),
        ):
            context = files.client()
            came = []
            for number in range(5):
                reader, writer = await asyncio.open_connection(where.host, where.port, ssl=context)
                stack.callback(writer.close)
                came.append((reader, writer))
                await eventually(lambda n=number: len(listener._doorway._greeted) == min(n + 1, 3), "it came")  # type: ignore[misc]
            for reader, _ in came[:2]:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read(1) == b""
            for reader, writer in came[2:]:
                writer.write(request(1, b"hi"))
                assert (await read_response(reader))[0] == 1

    run(scenario())


def test_where_many_say_nothing_after_their_handshakes_the_next_ones_of_their_addresses_come_slowly(
    run: Run, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So slowly here that the second one is sent away. Nobody else waits, nor do they once those have asked."""
    monkeypatch.setattr(handshakes, "SILENT_PER_S", 0.001)

    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(handshake_timeout_ms=5_000, caps=ConnectionCaps(tls_greeted_max=30))
        async with (
            contextlib.AsyncExitStack() as stack,
            listening(echo, limits, tls=tls.context, security="SSL", **_table(files)) as (
                listener,
                _,
                where,
                _,
            ),
        ):
            context, came = files.client(), []

            async def comes(host: str) -> bool:
                try:
                    reader, writer = await dials(where, context, host)
                except OSError:
                    return False
                stack.callback(writer.close)
                came.append((reader, writer))
                return True

            for number in range(4):
                assert await comes("127.0.0.9")
                await eventually(lambda n=number: len(listener._doorway._greeted) == n + 1, "it came")  # type: ignore[misc]
            assert [await comes("127.0.0.9"), await comes("127.0.0.9")] == [True, False]
            assert await asks(where, context) == b"hi"
            for reader, writer in came:
                writer.write(request(1, b"hi"))
                assert (await read_response(reader))[0] == 1
            # Each newcomer has them asked whether they still are silent.
            assert await comes("127.0.0.8")
            await eventually(lambda: not listener._doorway._greeted.has("127.0.0.9"), "it is seen")
            assert await comes("127.0.0.9")

    run(scenario())


def test_silence_before_and_in_a_handshake_ends(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        limits = ListenerLimits(first_request_timeout_ms=300, handshake_timeout_ms=300)
        async with listening(echo, limits, tls=tls.context, security="SSL", **_table(files)) as (
            _,
            _,
            where,
            life,
        ):
            async with connected(where) as (silent, _), connected(where) as (slow, writer):
                writer.write(b"\x16\x03\x01\x01")
                assert await closed_by_peer(silent)
                assert await closed_by_peer(slow)
            assert metric(life, "penstock_kafka_bad_frames_total") == 2
            assert await asks(where, files.client()) == b"hi"

    run(scenario())


def test_the_proxy_header_comes_before_tls(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        proxy: dict[str, Any] = {"proxy_protocol": True, "proxy_from": ("127.0.0.0/8",)}
        table = _table(files)
        async with listening(echo, tls=tls.context, security="SSL", **table, **proxy) as (
            _,
            handler,
            where,
            _,
        ):
            reader, writer = await asyncio.open_connection(where.host, where.port)
            writer.write(b"PROXY TCP4 10.1.2.3 10.9.9.9 5555 9092\r\n")
            await writer.drain()
            await writer.start_tls(files.client(), server_hostname="localhost")
            writer.write(request(4, b"through"))
            assert await read_response(reader) == (4, b"through")
            assert handler.connections[0].peer == "10.1.2.3:5555"
            writer.close()

    run(scenario())


def test_many_come_back_at_once_and_all_get_in(run: Run, files: Files) -> None:
    async def scenario() -> None:
        tls = ListenerTlsFiles("A", files.tls())
        async with listening(echo, tls=tls.context, security="SSL", **_table(files)) as (
            _,
            _,
            where,
            _,
        ):
            context = files.client()
            answers = await asyncio.gather(*(asks(where, context) for _ in range(200)))
            assert answers == [b"hi"] * 200

    run(scenario())


def test_files_that_do_not_belong_together_are_refused_at_the_start(files: Files) -> None:
    other = trustme.CA().issue_cert("x.test")
    (files.directory / "key.pem").write_bytes(other.private_key_pem.bytes())
    with pytest.raises(StartupError, match=r"listener A: tls.cert = .*they do not belong together"):
        ListenerTlsFiles("A", files.tls())


def test_wrong_rules_are_refused_at_the_start() -> None:
    with pytest.raises(StartupError, match="listener A: principal_mapping_rules: "):
        Certified("A", "RULE:(/x/")
