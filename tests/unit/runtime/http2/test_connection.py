"""One HTTP/2 connection without a transport: however its bytes are cut, and whatever the other side does wrong."""

from __future__ import annotations

import random

import pytest

from penstock_runtime.http2 import frames
from penstock_runtime.http2.connection import HEADER_BYTES_MOST, Connection, Headers, Stream
from penstock_runtime.http2.inbound import BadMessage, Buffer

HEADERS = [(":method", "POST"), (":path", "/test.Test/Echo"), ("content-type", "application/grpc")]


class Owner:
    """Of a stream of an `End`."""

    def __init__(self, end: End, stream: Stream) -> None:
        self.end, self.stream = end, stream

    def answered(self, headers: Headers) -> None:
        self.end.heads.setdefault(self.stream.number, []).extend(headers)

    def woken(self) -> None:
        self.end.woken(self.stream)

    def room(self) -> None:
        self.end.woken(self.stream)

    def broken(self, error: BadMessage) -> None:
        self.end.connection.reset(self.stream, frames.CANCEL, str(error))


class End:
    """One side, and what it was told. A server `echoes`, or reads nothing at all."""

    def __init__(self, *, is_client: bool, echoes: bool = True) -> None:
        self.out: list[bytes] = []
        self.messages: dict[int, list[bytes]] = {}
        self.heads: dict[int, list[tuple[str, str]]] = {}
        self.over: dict[int, tuple[int, str] | None] = {}
        self.echoes = echoes
        self.connection = Connection(self, self._send, is_client=is_client, message_bytes_most=1_000_000)
        self.connection.begin()

    def _send(self, buffers: list[Buffer]) -> None:
        self.out.append(b"".join(bytes(each) for each in buffers))

    def opened(self, stream: Stream, headers: Headers) -> None:
        stream.owner = Owner(self, stream)
        self.heads[stream.number] = list(headers)
        self.connection.head(stream, [(":status", "200")])

    def open(self) -> Stream:
        stream = self.connection.open(HEADERS)
        stream.owner = Owner(self, stream)
        return stream

    def woken(self, stream: Stream) -> None:
        if stream.is_over:
            self.over[stream.number] = stream.error
        if not self.echoes:
            return
        while (message := stream.take()) is not None:
            self.messages.setdefault(stream.number, []).append(bytes(message))
            if not self.connection.is_client and not stream.is_over:
                self.connection.send(stream, message)
        if not stream.is_over and stream.remote_ended and not self.connection.is_client and not stream.unsent:
            self.connection.head(stream, [("grpc-status", "0")], ends=True)

    def going_away(self) -> None:
        pass

    def takes(self, data: bytes, dice: random.Random | None = None) -> None:
        """As the event loop does it: where it wants the bytes, as many as come at a time."""
        while data:
            size = len(data) if dice is None else dice.choice((1, 3, 9, 100, 5_000, 200_000))
            room = self.connection.room()
            if room is None:
                self.connection.received(memoryview(data[:size]))
                while self.connection.is_behind:
                    self.connection.received(memoryview(b""))
            else:
                size = min(size, len(room), len(data))
                room[:size] = data[:size]
                room.release()
                self.connection.filled(size)
            data = data[size:]

    def said(self) -> bytes:
        said, self.out = b"".join(self.out), []
        return said


def pass_all(client: End, server: End, dice: random.Random | None = None) -> None:
    """Until neither has anything to say."""
    while client.out or server.out:
        server.takes(client.said(), dice)
        client.takes(server.said(), dice)


@pytest.mark.parametrize("seed", range(20))
def test_however_bytes_are_cut_the_same_messages_come(seed: int) -> None:
    dice = random.Random(seed)
    client, server = End(is_client=True), End(is_client=False)
    sent: dict[int, list[bytes]] = {}
    open_now: list[Stream] = []
    for _ in range(60):
        if not open_now or dice.random() < 0.2:
            open_now.append(client.open())
        stream = dice.choice(open_now)
        message = dice.randbytes(dice.choice((0, 1, 100, 16_384, 70_000, 400_000)))
        sent.setdefault(stream.number, []).append(message)
        client.connection.send(stream, message)
        if dice.random() < 0.5:
            pass_all(client, server, dice)
    pass_all(client, server, dice)
    for stream in open_now:
        client.connection.end(stream)
    pass_all(client, server, dice)
    assert server.messages == client.messages == sent
    assert client.over == dict.fromkeys((each.number for each in open_now), None)
    assert client.heads[1] == [(":status", "200"), ("grpc-status", "0")]
    assert not client.connection.streams
    assert not server.connection.streams


def hello() -> bytes:
    return End(is_client=True).said()


def call() -> bytes:
    client = End(is_client=True)
    client.open()
    return client.said()


def data(size: int, stream: int = 1, flags: int = 0) -> bytes:
    return frames.frame(frames.DATA, flags, stream, b"\0" * size)


BROKEN = {
    "no preface": (b"GET / HTTP/1.1\r\n\r\n", frames.PROTOCOL_ERROR),
    "no settings first": (
        frames.PREFACE + frames.frame(frames.PING, 0, 0, b"12345678"),
        frames.PROTOCOL_ERROR,
    ),
    "data for nobody": (hello() + data(5), frames.PROTOCOL_ERROR),
    "data after the end": (call() + data(5, flags=frames.END_STREAM) + data(5), frames.STREAM_CLOSED),
    "beyond the stream's window": (call() + data(16_384) * 5, frames.FLOW_CONTROL_ERROR),
    "a frame beyond what was agreed on": (
        call() + frames.frame_header(5_000_000, frames.DATA, 0, 1),
        frames.FRAME_SIZE_ERROR,
    ),
    "headers that never end": (
        hello()
        + frames.frame(frames.HEADERS, 0, 1, b"")
        + frames.frame(frames.CONTINUATION, 0, 1, b"\0" * 9_000) * 2,
        frames.ENHANCE_YOUR_CALM,
    ),
    "headers that no one can read": (
        hello() + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff\xff\xff\xff"),
        frames.COMPRESSION_ERROR,
    ),
    "something between headers": (
        hello() + frames.frame(frames.HEADERS, 0, 1, b"") + frames.frame(frames.PING, 0, 0, b"12345678"),
        frames.PROTOCOL_ERROR,
    ),
    "a ping flood": (
        hello() + frames.frame(frames.PING, 0, 0, b"12345678") * 1_001,
        frames.ENHANCE_YOUR_CALM,
    ),
    "a settings flood": (hello() + frames.settings({}) * 1_001, frames.ENHANCE_YOUR_CALM),
    "empty data without end": (call() + data(0) * 1_001, frames.ENHANCE_YOUR_CALM),
    "a window that grows by nothing": (hello() + frames.window_update(0, 0), frames.PROTOCOL_ERROR),
    "a window without end": (
        hello() + frames.window_update(0, frames.WINDOW_MOST),
        frames.FLOW_CONTROL_ERROR,
    ),
    "more padding than frame": (
        call() + frames.frame(frames.DATA, frames.PADDED, 1, b"\x09abc"),
        frames.PROTOCOL_ERROR,
    ),
    "a huge frame of no use": (hello() + frames.frame_header(1 << 20, 0x20, 0, 0), frames.ENHANCE_YOUR_CALM),
    "a push": (hello() + frames.frame(frames.PUSH_PROMISE, 0, 1, b"\0\0\0\2"), frames.PROTOCOL_ERROR),
}


@pytest.mark.parametrize("what", BROKEN)
def test_who_breaks_the_protocol_is_sent_away(what: str) -> None:
    said, code = BROKEN[what]
    server = End(is_client=False, echoes=False)
    with pytest.raises(frames.BrokenPeer) as caught:
        server.takes(said)
    assert caught.value.code == code


def test_streams_opened_and_reset_for_nothing_end_the_connection() -> None:
    """CVE-2023-44487: each costs its client next to nothing."""
    client, server = End(is_client=True), End(is_client=False)
    for _ in range(1_001):
        client.connection.reset(client.open(), frames.CANCEL)
    with pytest.raises(frames.BrokenPeer) as caught:
        server.takes(client.said())
    assert caught.value.code == frames.ENHANCE_YOUR_CALM


def test_streams_beyond_the_most_are_refused_and_the_others_go_on() -> None:
    client, server = End(is_client=True), End(is_client=False)
    streams = [client.open() for _ in range(101)]
    pass_all(client, server)
    assert client.over == {
        streams[100].number: (frames.REFUSED_STREAM, "reset by the other side (REFUSED_STREAM)")
    }
    client.connection.send(streams[0], b"there")
    pass_all(client, server)
    assert client.messages == {1: [b"there"]}


def test_a_message_that_is_only_announced_takes_no_memory() -> None:
    server = End(is_client=False, echoes=False)
    server.takes(call() + frames.frame(frames.DATA, 0, 1, frames.message_prefix(900_000)))
    stream = server.connection.streams[1]
    assert not stream.inbound.begun_bytes
    assert stream.take() is None
    message = stream.inbound._message
    assert message is not None
    assert len(message) <= 16 * 1024


def test_messages_that_are_too_long_or_compressed_end_their_stream_alone() -> None:
    for prefix in (frames.message_prefix(1_000_001), b"\1\0\0\0\5"):
        server = End(is_client=False, echoes=False)
        server.takes(call() + frames.frame(frames.DATA, 0, 1, prefix))
        assert server.connection.streams[1].take() is None
        assert list(server.over) == [1]


def test_long_headers_go_in_parts_and_come_whole() -> None:
    client, server = End(is_client=True), End(is_client=False)
    pass_all(client, server)
    client.connection._peer_frame_bytes = 100
    more = [(f"name-{n}", "x" * 50) for n in range(20)]
    client.connection.open([*HEADERS, *more])
    pass_all(client, server)
    assert server.heads[1] == [*HEADERS, *more]
    too_many = [(f"name-{n}", "y" * 100) for n in range(HEADER_BYTES_MOST // 100)]
    client.connection.open([*HEADERS, *too_many])
    with pytest.raises(frames.BrokenPeer):
        server.takes(client.said())
