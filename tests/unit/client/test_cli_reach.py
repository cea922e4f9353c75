"""What a port is said to be, by what it answers to the first question."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from penstock.cli import reach
from penstock.cli.kafka import check_reachable
from penstock.cli.main import run
from penstock.errors import CommandError, ExitCode

SETTINGS_FRAME = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x64"
TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"
ANSWER_TIMEOUT_S = "30"


@contextmanager
def server(answer: bytes | None, pieces: int = 1) -> Iterator[str]:
    """Reads one request and sends `answer`, in pieces, then closes; None: ApiVersions as a broker answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            listener.close()  # whoever asks again is refused
            with connection:
                request = connection.recv(1024)
                body = request[8:12] + struct.pack(">hi", 0, 0)
                data = struct.pack(">i", len(body)) + body if answer is None else answer
                step = max(1, len(data) // pieces)
                with suppress(ConnectionError):  # who asked may have seen enough, and closed
                    for start in range(0, len(data), step):
                        connection.sendall(data[start : start + step])

        thread = threading.Thread(target=serve, daemon=True)
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        thread.start()
        yield address
        thread.join()


@contextmanager
def silent_http2() -> Iterator[str]:
    """Says nothing to who does not begin with HTTP/2's preface, as our gRPC ports."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    if connection.recv(1024).startswith(b"PRI * HTTP/2.0"):
                        connection.sendall(SETTINGS_FRAME)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(reach.TIMEOUT_VARIABLE, ANSWER_TIMEOUT_S)


@pytest.mark.parametrize("pieces", [1, 100])
def test_a_broker_is_one_that_repeats_the_correlation_id(pieces: int) -> None:
    with server(None, pieces) as address:
        check_reachable(address)


@pytest.mark.parametrize(
    ("answer", "speaks"),
    [
        (SETTINGS_FRAME, reach.Speaks.GRPC),
        (b"HTTP/1.0 400 Bad Request\r\n\r\n", reach.Speaks.HTTP),
        (TLS_ALERT, reach.Speaks.TLS),
        (b"220 mail.example.org ESMTP\r\n", reach.Speaks.OTHER),
        (struct.pack(">ii", 10, 7) + bytes(6), reach.Speaks.OTHER),
        (struct.pack(">ii", 2**31 - 1, 0x50454E53) + bytes(6), reach.Speaks.OTHER),
        (struct.pack(">ii", 100, 0x50454E53) + bytes(6), reach.Speaks.NOTHING),
        (b"", reach.Speaks.NOTHING),
        (b"\x00\x00", reach.Speaks.NOTHING),
    ],
)
@pytest.mark.parametrize("pieces", [1, 100])
def test_another_server_is_told_by_its_first_bytes(answer: bytes, speaks: reach.Speaks, pieces: int) -> None:
    with server(answer, pieces) as address:
        found = reach.kafka_connection(address)
    assert isinstance(found, reach.Problem)
    assert found.speaks is speaks
    with server(answer, pieces) as address, pytest.raises(CommandError) as told:
        check_reachable(address)
    assert told.value.exit_code == ExitCode.UNREACHABLE
    assert f"{address}: " in told.value.message
    assert "\n" not in told.value.message
    wrong_address = "give --bootstrap the cluster's Kafka address" in told.value.message
    assert wrong_address == (speaks not in (reach.Speaks.NOTHING, reach.Speaks.TLS))
    wants_file = "--client-config FILE" in told.value.message
    assert wants_file == (speaks in (reach.Speaks.NOTHING, reach.Speaks.TLS))


def test_an_address_of_another_port_does_not_hide_the_broker_beside_it() -> None:
    with server(SETTINGS_FRAME) as wrong, server(None) as right:
        check_reachable(f"{wrong}, {right}")


MALFORMED = [",", "localhost", ":9092", "h:0", "h:65536", "h:-1", "h:9092/x", "http://h:9092", "a b:1"]


@pytest.mark.parametrize(
    ("words", "address"),
    [
        (["topic", "list", "--bootstrap"], ""),
        *((["topic", "list", "--bootstrap"], address) for address in MALFORMED),
        *((["produce", "x", "--receipt", "--gateway"], address) for address in MALFORMED),
        *((["controller", "list", "--controllers"], address) for address in MALFORMED),
    ],
)
def test_a_malformed_address_is_bad_usage(
    words: list[str], address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, address]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words[-1] in error
    assert "HOST:PORT" in error


def test_an_ipv6_address_is_written_in_brackets() -> None:
    assert reach.split_address("[::1]:9092") == ("::1", 9092)


def test_a_grpc_port_that_says_nothing_to_others_is_asked_in_its_own_words() -> None:
    with silent_http2() as address:
        found = reach.look_for_grpc(address)
    assert (found.speaks, found.reason) == (reach.Speaks.GRPC, "this is a gRPC port")
