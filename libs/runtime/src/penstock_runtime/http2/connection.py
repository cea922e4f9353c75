"""One HTTP/2 connection of either side, without a transport: bytes come in, buffers go out.

What comes is handed over in the order in which it came: the head of a stream, its whole messages, its end. What a
stream sends goes out in one list of buffers for each message, within the windows of both sides.
Sources: RFC 9113, and gRPC's PROTOCOL-HTTP2.

Windows. The other side may send what has been taken from a stream and `window_bytes` more, or the rest of a message
that has begun; of the connection always half a window more, so that a stream that nobody reads holds up no other.

Bounds. A frame that is no data, and the headers of a call, have a length; frames that bring nothing on (pings,
settings, empty data, calls that are begun and reset at once) may be some until `rest`. Beyond, the connection ends:
nobody needs them (CVE-2019-9512 and its like, CVE-2023-44487).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import hpack

from penstock_runtime.http2 import frames
from penstock_runtime.http2.frames import (
    FRAME_BYTES_DEFAULT,
    FRAME_HEADER_BYTES,
    MESSAGE_PREFIX_BYTES,
    WINDOW_DEFAULT,
    WINDOW_MOST,
    BrokenPeer,
    frame_header,
    message_header,
    message_prefix,
)
from penstock_runtime.http2.inbound import TRUSTED_BYTES, BadMessage, Buffer, Inbound

Headers = Sequence[tuple[str, str]]

HEADER_BYTES_MOST: Final = 16 * 1024
_CONTROL_BYTES_MOST: Final = 32 * 1024
"""Of a frame that is no data, or of data with padding: nobody sends longer ones."""
FRAMES_AT_ONCE: Final = 500
IDLE_MOST: Final = 1_000
"""Frames that bring nothing on, since the last message or the last rest."""
_TEXT_BYTES_MOST: Final = 200
"""Of what the other side says for people."""
_COPIED_BYTES: Final = 4 * 1024
"""A message up to that size goes with its header in one buffer."""


class Events(Protocol):
    """Who is told what comes."""

    def opened(self, stream: Stream, headers: Headers) -> None:
        """The other side has begun a stream (server)."""

    def going_away(self) -> None:
        """The other side takes no new streams."""


class Owner(Protocol):
    """Whose stream it is."""

    def answered(self, headers: Headers) -> None:
        """Headers of a stream that this side has begun, trailers too (client)."""

    def woken(self) -> None:
        """A message is whole, the other side has ended its half, or the stream is over."""

    def room(self) -> None:
        """All that waited for windows has gone."""

    def broken(self, error: BadMessage) -> None:
        """What comes is no message, or too large a one: nothing more is taken of the stream. End it."""


class Stream:
    """One call."""

    __slots__ = (
        "_granted",
        "connection",
        "error",
        "inbound",
        "is_deaf",
        "is_over",
        "number",
        "owner",
        "remote_ended",
        "self_ended",
        "send_window",
        "unsent",
        "window_bytes",
    )

    def __init__(self, connection: Connection, number: int, send_window: int) -> None:
        self.connection = connection
        self.number = number
        self.send_window = send_window
        self.inbound = Inbound(connection.message_bytes_most)
        self.unsent: deque[memoryview] = deque()
        """What of messages waits for windows."""
        self.remote_ended = self.self_ended = self.is_over = False
        self.is_deaf = False
        """What more comes of it is dropped."""
        self.error: tuple[int, str] | None = None
        """Why it is over: the other side's reset, or ours."""
        self.owner: Owner | None = None
        self.window_bytes = connection.first_window_bytes
        self._granted = connection.first_window_bytes

    def wake(self) -> None:
        """Tell whose it is, if it is anybody's."""
        if self.owner is not None:
            self.owner.woken()

    def take(self) -> Buffer | None:
        """The next whole message, if it is there."""
        inbound = self.inbound
        if not inbound.messages:
            if not inbound.is_unread:
                return None
            self._read()
            if not inbound.messages:
                return None
        message = inbound.take()
        if not self.remote_ended:
            self.grant()
        return message

    def widen(self, window_bytes: int) -> None:
        """Somebody reads: from now on so much may be under way."""
        self.window_bytes = window_bytes
        self.inbound.announced_bytes = TRUSTED_BYTES
        self._read()
        if not self.remote_ended and not self.is_deaf:
            self.grant()

    def _read(self) -> None:
        try:
            self.inbound.read()
        except BadMessage as error:
            self.is_deaf = True
            if self.owner is not None:
                self.owner.broken(error)

    def came(self, size: int) -> bool:
        """So many bytes of data have come; False when they were too many."""
        self._granted -= size
        return self._granted >= 0

    def grant(self) -> None:
        """Let more come, when it is worth a frame."""
        inbound = self.inbound
        window = self.window_bytes
        begun = inbound.begun_bytes
        wanted = max(window - inbound.waiting_bytes, 0)
        if begun > window // 2:
            wanted = max(wanted, min(begun, WINDOW_MOST // 2))
        more = wanted - self._granted
        if more >= window // 2 and not self.is_over:
            self._granted += more
            self.connection.say(frames.window_update(self.number, more))


class Connection:
    """Of one side."""

    def __init__(
        self,
        events: Events,
        out: Callable[[list[Buffer]], None],
        *,
        is_client: bool,
        streams_max: int = 100,
        message_bytes_most: int,
        first_window_bytes: int = WINDOW_DEFAULT,
        window_bytes: int = 16 * 1024 * 1024,
        frame_bytes_most: int = 4 * 1024 * 1024,
        resets_most: int = IDLE_MOST,
    ) -> None:
        """`out` is given buffers to send, in order. `first_window_bytes`: of a stream until `Stream.widen`.
        `resets_most`: calls that may be begun and reset between two rests."""
        self._events = events
        self._out = out
        self.is_client = is_client
        self.streams: dict[int, Stream] = {}
        self.streams_max = streams_max
        self.peer_streams_max = 100 if is_client else 0
        self.message_bytes_most = message_bytes_most
        self.first_window_bytes = first_window_bytes
        self.is_gone = False
        """No new streams: one side has said so."""
        self.is_behind = False
        """Some of what came waits for the next turn."""
        self.begun = 0
        """Calls, by the last bytes that came."""
        self.last_remote = 0
        self.ping_answered: Callable[[], None] = _nothing
        self.send_window = WINDOW_DEFAULT
        self._window_bytes = window_bytes
        self._granted = WINDOW_DEFAULT
        self._peer_first_window = WINDOW_DEFAULT
        self._peer_frame_bytes = FRAME_BYTES_DEFAULT
        self._frame_bytes_most = frame_bytes_most
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder(max_header_list_size=HEADER_BYTES_MOST)
        self._next = 1
        self._head = b""
        self._preface_left = 0 if is_client else len(frames.PREFACE)
        self._left = 0
        """Bytes of the data frame that is coming."""
        self._current: Stream | None = None
        self._ends = False
        """That frame ends its stream."""
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of headers that are not whole."""
        self._idle = self._resets = self._rested_at = 0
        self._resets_most = resets_most
        self._has_settings = False
        self._blocked: dict[Stream, None] = {}
        """Streams that wait for the connection's window."""

    def begin(self) -> None:
        """Say hello; a server does so when the other side has."""
        if self.is_client:
            self._say_hello()

    def _say_hello(self) -> None:
        hello = b""
        if self.is_client:
            hello = frames.PREFACE
        values = {
            frames.SETTING_INITIAL_WINDOW_SIZE: self.first_window_bytes,
            frames.SETTING_MAX_FRAME_SIZE: self._frame_bytes_most,
            frames.SETTING_MAX_HEADER_LIST_SIZE: HEADER_BYTES_MOST,
        }
        if self.is_client:
            values[frames.SETTING_ENABLE_PUSH] = 0
        else:
            values[frames.SETTING_MAX_CONCURRENT_STREAMS] = self.streams_max
        hello += frames.settings(values)
        self._granted = self._window_bytes
        hello += frames.window_update(0, self._window_bytes - WINDOW_DEFAULT)
        self.say(hello)

    def say(self, data: bytes) -> None:
        """Send as it is."""
        self._out([data])

    @property
    def has_begun(self) -> bool:
        """Whether the other side has said hello."""
        return self._has_settings

    def rest(self) -> None:
        """Some seconds have gone by: what was counted until now is forgiven."""
        self._idle = self._resets = 0
        self._rested_at = self.last_remote

    # -- streams ------------------------------------------------------------------

    def open(self, headers: Headers) -> Stream:
        """Begin a stream (client)."""
        stream = Stream(self, self._next, self._peer_first_window)
        self._next += 2
        self.streams[stream.number] = stream
        self._send_headers(stream, headers, 0)
        return stream

    def head(self, stream: Stream, headers: Headers, *, ends: bool = False) -> None:
        """Send headers of a stream: the first ones of an answer, or trailers, which end it."""
        if stream.self_ended or stream.is_over:
            return
        self._send_headers(stream, headers, frames.END_STREAM if ends else 0)
        if ends:
            stream.self_ended = True
            self._close_if_both(stream)

    def _send_headers(self, stream: Stream, headers: Headers, flags: int) -> None:
        block = self._encoder.encode(headers, huffman=False)
        most = self._peer_frame_bytes
        if len(block) <= most:
            self._out(
                [frame_header(len(block), frames.HEADERS, flags | frames.END_HEADERS, stream.number) + block]
            )
            return
        parts = [block[at : at + most] for at in range(0, len(block), most)]
        sent: list[Buffer] = []
        for index, part in enumerate(parts):
            last = frames.END_HEADERS if index == len(parts) - 1 else 0
            kind = frames.CONTINUATION if index else frames.HEADERS
            sent.append(frames.frame(kind, last | (0 if index else flags), stream.number, part))
        self._out(sent)

    def send(self, stream: Stream, message: Buffer) -> bool:
        """Send a message; False when some of it waits for windows: `Events.sent` tells when it has gone."""
        size = len(message)
        framed = size + MESSAGE_PREFIX_BYTES
        if (
            framed <= stream.send_window
            and framed <= self.send_window
            and framed <= self._peer_frame_bytes
            and not stream.unsent
        ):
            stream.send_window -= framed
            self.send_window -= framed
            head = message_header(size, 0, stream.number)
            if size <= _COPIED_BYTES:
                self._out([b"".join((head, message))])
            else:
                self._out([head, message])
            return True
        stream.unsent.append(memoryview(message_prefix(size)))
        if size:
            stream.unsent.append(memoryview(message).cast("B"))
        return self._push(stream)

    def _push(self, stream: Stream) -> bool:
        """Send of what waits what the windows let go; whether all of it went."""
        unsent = stream.unsent
        out: list[Buffer] = []
        budget = min(stream.send_window, self.send_window)
        while unsent and budget > 0:
            parts: list[Buffer] = []
            size, most = 0, min(budget, self._peer_frame_bytes)
            while unsent and size < most:
                part = unsent[0]
                if len(part) <= most - size:
                    unsent.popleft()
                else:
                    unsent[0], part = part[most - size :], part[: most - size]
                parts.append(part)
                size += len(part)
            budget -= size
            stream.send_window -= size
            self.send_window -= size
            out.append(frame_header(size, frames.DATA, 0, stream.number))
            out += parts
        if out:
            self._out(out)
        if not unsent:
            self._blocked.pop(stream, None)
            return True
        if self.send_window <= 0:
            self._blocked[stream] = None
        return False

    def end(self, stream: Stream) -> None:
        """This side has nothing more to send (client)."""
        if not stream.self_ended and not stream.is_over:
            stream.self_ended = True
            self.say(frames.frame(frames.DATA, frames.END_STREAM, stream.number))
            self._close_if_both(stream)

    def reset(self, stream: Stream, code: int, reason: str = "") -> None:
        """End a stream at once."""
        if not stream.is_over:
            self.say(frames.rst_stream(stream.number, code))
            self._over(stream, (code, reason))

    def _close_if_both(self, stream: Stream) -> None:
        if stream.self_ended and stream.remote_ended:
            self._over(stream, None)

    def _over(self, stream: Stream, error: tuple[int, str] | None) -> None:
        stream.is_over = True
        stream.error = error
        stream.unsent.clear()
        self._blocked.pop(stream, None)
        self.streams.pop(stream.number, None)
        stream.wake()

    def lost(self, reason: str) -> None:
        """The connection is gone."""
        self.is_gone = True
        for stream in list(self.streams.values()):
            self._over(stream, (frames.INTERNAL_ERROR, reason))

    def go_away(self, code: int = frames.NO_ERROR, text: str = "") -> None:
        """Take no new streams any more."""
        self.is_gone = True
        self.say(frames.goaway(self.last_remote, code, text.encode()))

    # -- what comes ---------------------------------------------------------------

    def room(self) -> memoryview | None:
        """Where the next bytes are best read to; None: anywhere."""
        if self._left and self._current is not None and not self._current.is_deaf:
            return self._current.inbound.room(self._left)
        return None

    def filled(self, size: int) -> None:
        """So many bytes have been read to `room`. Raises BrokenPeer."""
        stream = self._current
        assert stream is not None
        self._left -= size
        stream.inbound.filled(size)
        self._after_data(stream)

    def received(self, data: memoryview, calls_left: int = WINDOW_MOST) -> None:
        """Bytes have come. Raises BrokenPeer: say `go_away` with its code, and close.

        Only so much is done at a time: while `is_behind` call it again, in turns with others, before more is read.
        `calls_left`: so many may be begun; `begun` says how many were.
        """
        self.is_behind = False
        self.begun, frames_left = 0, FRAMES_AT_ONCE
        if self._head:
            data = memoryview(self._head + bytes(data))
            self._head = b""
        if self._preface_left:
            data = self._take_preface(data)
        position, end = 0, len(data)
        while position < end:
            if self._left:
                size = min(self._left, end - position)
                self._left -= size
                self._feed(data[position : position + size])
                position += size
                continue
            if end - position < FRAME_HEADER_BYTES:
                break
            length = data[position] << 16 | data[position + 1] << 8 | data[position + 2]
            kind, flags = data[position + 3], data[position + 4]
            number = frames.u32(data[position + 5 : position + 9]) & 0x7FFFFFFF  # type: ignore[arg-type]
            frames_left -= 1
            begins = kind == frames.HEADERS and number > self.last_remote and not self.is_client
            if frames_left < 0 or (begins and self.begun >= calls_left):
                self.is_behind = True
                break
            if kind == frames.DATA and not flags & frames.PADDED:
                if self._block is not None or not self._has_settings:
                    raise BrokenPeer(frames.PROTOCOL_ERROR, "data where headers or settings were due")
                position += FRAME_HEADER_BYTES
                self._begin_data(number, length, flags)
                continue
            if length > _CONTROL_BYTES_MOST:
                raise BrokenPeer(frames.ENHANCE_YOUR_CALM, f"a frame of kind {kind} and {length} bytes")
            if end - position < FRAME_HEADER_BYTES + length:
                break
            self.begun += begins
            position += FRAME_HEADER_BYTES
            self._control(kind, flags, number, bytes(data[position : position + length]))
            position += length
        if position < end:
            self._head = bytes(data[position:])

    def _take_preface(self, data: memoryview) -> memoryview:
        wanted = frames.PREFACE[-self._preface_left :]
        size = min(len(wanted), len(data))
        if data[:size] != wanted[:size]:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "no HTTP/2 preface")
        self._preface_left -= size
        if not self._preface_left:
            self._say_hello()
        return data[size:]

    def _begin_data(self, number: int, length: int, flags: int) -> None:
        if length > self._frame_bytes_most:
            raise BrokenPeer(frames.FRAME_SIZE_ERROR, f"data of {length} bytes in a frame")
        self._granted -= length
        if self._granted < 0:
            raise BrokenPeer(frames.FLOW_CONTROL_ERROR, "more data than the connection's window")
        if self._granted < self._window_bytes // 2:
            self.say(frames.window_update(0, self._window_bytes - self._granted))
            self._granted = self._window_bytes
        stream = self.streams.get(number)
        if stream is None:
            self._is_known(number)
        elif stream.remote_ended:
            raise BrokenPeer(frames.STREAM_CLOSED, f"data after the end of stream {number}")
        elif not stream.came(length):
            raise BrokenPeer(frames.FLOW_CONTROL_ERROR, f"more data than the window of stream {number}")
        self._current = stream
        self._left = length
        self._ends = bool(flags & frames.END_STREAM)
        if not length:
            self._count_idle()
            if stream is not None:
                self._after_data(stream)

    def _is_known(self, number: int) -> None:
        """Raises BrokenPeer when a stream has never been there. One that is over may still be sent to."""
        is_ours = bool(number & 1) == self.is_client
        if number == 0 or number > (self._next - 2 if is_ours else self.last_remote):
            raise BrokenPeer(frames.PROTOCOL_ERROR, f"stream {number} was never opened")

    def _feed(self, data: memoryview) -> None:
        stream = self._current
        if stream is None or stream.is_over:
            return
        if not stream.is_deaf:
            try:
                stream.inbound.feed(data)
            except BadMessage as error:
                stream.is_deaf = True
                if stream.owner is not None:
                    stream.owner.broken(error)
                return
        self._after_data(stream)

    def _after_data(self, stream: Stream) -> None:
        if not self._left and self._ends:
            stream.remote_ended = True
            stream.wake()
            self._close_if_both(stream)
            return
        if stream.is_deaf:
            stream.wake()
            return
        if stream.inbound.messages or stream.inbound.is_unread:
            self._idle = 0
            stream.wake()
        if stream.inbound.begun_bytes:
            stream.grant()

    def _control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if not self._has_settings and kind != frames.SETTINGS:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "settings were due")
        if self._block is not None and (kind != frames.CONTINUATION or number != self._block[0]):
            raise BrokenPeer(frames.PROTOCOL_ERROR, "the rest of headers was due")
        if kind == frames.DATA:
            self._padded_data(flags, number, payload)
        elif kind == frames.HEADERS:
            self._headers(flags, number, payload)
        elif kind == frames.CONTINUATION:
            self._continuation(flags, payload)
        elif kind == frames.WINDOW_UPDATE:
            self._on_window(number, payload)
        elif kind == frames.SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == frames.PING:
            self._on_ping(flags, number, payload)
        elif kind == frames.RST_STREAM:
            self._on_reset(number, payload)
        elif kind == frames.GOAWAY:
            self._on_goaway(payload)
        elif kind == frames.PUSH_PROMISE:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "a push")
        else:
            self._count_idle()  # PRIORITY, and kinds that nobody knows, are passed over

    def _count_idle(self) -> None:
        self._idle += 1
        if self._idle > IDLE_MOST:
            raise BrokenPeer(frames.ENHANCE_YOUR_CALM, f"{self._idle} frames that bring nothing on")

    def _padded_data(self, flags: int, number: int, payload: bytes) -> None:
        padding = payload[0] if payload else 0
        if padding >= len(payload):
            raise BrokenPeer(frames.PROTOCOL_ERROR, "more padding than frame")
        self._begin_data(number, len(payload), flags)
        self._left = 0
        data = memoryview(payload)[1 : len(payload) - padding]
        stream = self._current
        if data:
            self._feed(data)
        elif stream is not None and not stream.is_over:
            self._count_idle()
            self._after_data(stream)

    def _headers(self, flags: int, number: int, payload: bytes) -> None:
        begin, end = 0, len(payload)
        if flags & frames.PADDED:
            if not payload:
                raise BrokenPeer(frames.FRAME_SIZE_ERROR, "no room for padding")
            begin, end = 1, end - payload[0]
        if flags & frames.HAS_PRIORITY:
            begin += 5
        if begin > end:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "more padding than frame")
        self._block = number, flags, bytearray(payload[begin:end])
        if flags & frames.END_HEADERS:
            self._whole_headers()

    def _continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "the rest of headers that never began")
        self._count_idle()
        self._block[2].extend(payload)
        if len(self._block[2]) > HEADER_BYTES_MOST:
            raise BrokenPeer(frames.ENHANCE_YOUR_CALM, f"headers of more than {HEADER_BYTES_MOST} bytes")
        if flags & frames.END_HEADERS:
            self._whole_headers()

    def _whole_headers(self) -> None:
        assert self._block is not None
        (number, flags, block), self._block = self._block, None
        try:
            headers = [(str(name), str(value)) for name, value in self._decoder.decode(bytes(block))]
        except hpack.HPACKError as error:
            raise BrokenPeer(frames.COMPRESSION_ERROR, f"headers: {error}") from None
        except UnicodeDecodeError:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "headers that are no text") from None
        stream = self.streams.get(number)
        is_new = stream is None and not self.is_client and number & 1 and number > self.last_remote
        if is_new:
            self.last_remote = number
            if self.is_gone or len(self.streams) >= self.streams_max:
                self._count_idle()
                self.say(frames.rst_stream(number, frames.REFUSED_STREAM))
                return
            stream = Stream(self, number, self._peer_first_window)
            self.streams[number] = stream
            stream.remote_ended = bool(flags & frames.END_STREAM)
            self._events.opened(stream, headers)
            return
        if stream is None:
            self._is_known(number)
            self._count_idle()
            return
        if stream.remote_ended or (not self.is_client and not flags & frames.END_STREAM):
            raise BrokenPeer(frames.PROTOCOL_ERROR, f"headers where none are due on stream {number}")
        if self.is_client and stream.owner is not None:
            stream.owner.answered(headers)
        if flags & frames.END_STREAM:
            stream.remote_ended = True
            stream.wake()
            self._close_if_both(stream)

    def _on_window(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenPeer(frames.FRAME_SIZE_ERROR, "WINDOW_UPDATE")
        more = frames.u32(payload) & 0x7FFFFFFF
        if not more:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "a window that grows by nothing")
        if number:
            stream = self.streams.get(number)
            if stream is None:
                self._is_known(number)
                return
            stream.send_window += more
            if stream.send_window > WINDOW_MOST:
                self.reset(stream, frames.FLOW_CONTROL_ERROR, "its window is too large")
            elif stream.unsent and self._push(stream):
                _has_room(stream)
            return
        self.send_window += more
        if self.send_window > WINDOW_MOST:
            raise BrokenPeer(frames.FLOW_CONTROL_ERROR, "a window that is too large")
        for stream in list(self._blocked):
            if self.send_window <= 0:
                break
            del self._blocked[stream]  # who still has to wait goes to the end of the line
            if self._push(stream):
                _has_room(stream)

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number:
            raise BrokenPeer(frames.PROTOCOL_ERROR, "settings of a stream")
        if flags & frames.ACK:
            if payload:
                raise BrokenPeer(frames.FRAME_SIZE_ERROR, "an ack that says something")
            return
        if self._has_settings:
            self._count_idle()
        self._has_settings = True
        for name, value in frames.read_settings(payload):
            if name == frames.SETTING_INITIAL_WINDOW_SIZE:
                if value > WINDOW_MOST:
                    raise BrokenPeer(frames.FLOW_CONTROL_ERROR, "a first window that is too large")
                change, self._peer_first_window = value - self._peer_first_window, value
                for stream in self.streams.values():
                    stream.send_window += change
            elif name == frames.SETTING_MAX_FRAME_SIZE:
                if not FRAME_BYTES_DEFAULT <= value <= frames.FRAME_BYTES_MOST:
                    raise BrokenPeer(frames.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._peer_frame_bytes = value
            elif name == frames.SETTING_HEADER_TABLE_SIZE:
                self._encoder.header_table_size = min(value, 4096)
            elif name == frames.SETTING_MAX_CONCURRENT_STREAMS and self.is_client:
                self.peer_streams_max = value
        self.say(frames.frame(frames.SETTINGS, frames.ACK, 0))
        # Not before: by the other side's count the new windows begin with the ack.
        for stream in list(self.streams.values()):
            if stream.unsent and self._push(stream):
                _has_room(stream)

    def _on_ping(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) != 8:
            raise BrokenPeer(frames.FRAME_SIZE_ERROR, "PING")
        if flags & frames.ACK:
            self.ping_answered()
            return
        self._count_idle()
        self.say(frames.frame(frames.PING, frames.ACK, 0, payload))

    def ping(self) -> None:
        """Ask whether the other side is there; `ping_answered` is called when it says so."""
        self.say(frames.frame(frames.PING, 0, 0, b"penstock"))

    def _on_goaway(self, payload: bytes) -> None:
        if len(payload) < 8:
            raise BrokenPeer(frames.FRAME_SIZE_ERROR, "GOAWAY")
        last, code = frames.u32(payload) & 0x7FFFFFFF, frames.u32(payload, 4)
        self.is_gone = True
        self._events.going_away()
        if self.is_client:
            text = payload[8 : 8 + _TEXT_BYTES_MOST].decode("utf-8", "replace")
            why = f"the other side goes away ({frames.name_of(code)}{': ' + text if text else ''})"
            for stream in [each for each in self.streams.values() if each.number > last]:
                self._over(stream, (frames.REFUSED_STREAM, why))

    def _on_reset(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise BrokenPeer(frames.FRAME_SIZE_ERROR, "RST_STREAM")
        stream = self.streams.get(number)
        if stream is None:
            self._is_known(number)
        if not self.is_client and (stream is None or number > self._rested_at):
            self._resets += 1
            if self._resets > self._resets_most:
                raise BrokenPeer(frames.ENHANCE_YOUR_CALM, f"{self._resets} calls that were reset at once")
        if stream is None:
            return
        code = frames.u32(payload)
        self._over(stream, (code, f"reset by the other side ({frames.name_of(code)})"))


def _nothing() -> None:
    return None


def _has_room(stream: Stream) -> None:
    if stream.owner is not None:
        stream.owner.room()
