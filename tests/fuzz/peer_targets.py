"""What Penstock's own processes say to one another, and what a balancer says before a client speaks."""

from __future__ import annotations

import math
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from google.protobuf.message import DecodeError

from fuzz.target import Target, expect
from penstock_controller.quorum import messages
from penstock_controller.quorum.commands import NUMBER_END, find_poison
from penstock_controller.quorum.peer_tls import TlsEnd, TlsFault, TlsStream
from penstock_core.errors import ErrorCode, InvariantBroken
from penstock_core.limits import FORWARD_CHUNK_BYTES_MAX
from penstock_core.metadata import MetadataImage
from penstock_core.security.identity import ROLES, BadIdentity, identity_of
from penstock_frontend.listener.proxy_protocol import V2_BYTES_MAX, parse_proxy_header
from penstock_proto.fast import fetch_range, forward, replicate
from penstock_proto.fast.pieces import Assembly
from penstock_proto.fast.primitives import MalformedMessage
from penstock_proto.v1 import common_pb2, data_pb2, metadata_pb2, storage_pb2
from penstock_runtime.http2 import frames as http2
from penstock_runtime.http2.connection import Connection, Headers, Stream
from penstock_runtime.http2.inbound import BadMessage, Buffer
from penstock_runtime.security.role_tls import RoleContexts, RoleTls, load_contexts
from penstock_storage_node.replication.sender import DataFrame
from support.certificates import ClusterCa

# -- between gateways and nodes ------------------------------------------------------------------


def _forward_response(data: bytes) -> None:
    frames = forward.unpack(data)
    expect(sum(len(frame.chunk) for frame in frames) <= len(data), "chunks lie in the message")
    try:
        generated = storage_pb2.ForwardResponse.FromString(data)
    except DecodeError:
        return
    expect(len(generated.frames) == len(frames), "as many frames as the generated class finds")
    for one, other in zip(frames, generated.frames, strict=True):
        expect(bytes(one.chunk) == other.chunk, "the same bytes")


def _forward_response_seeds() -> Iterator[bytes]:
    parts: list[bytes] = []
    for index, chunk in enumerate((b"", b"response", b"x" * 300)):
        buffers = forward.forward_response_frame(
            index + 200 * index,
            [chunk] if chunk else [],
            len(chunk),
            last=index > 0,
            frame_bytes=len(chunk),
            none=index == 0,
            close_connection=index == 0,
            concerns_router=index == 1,
        )
        parts.append(b"".join(bytes(b) for b in buffers))
        yield parts[-1]
    yield b"".join(parts)


def _forward_request(data: bytes) -> None:
    frames = forward.decode_forward_request(data)
    expect(sum(len(frame.chunk) for frame in frames.frames) <= len(data), "chunks lie in the message")
    try:
        generated = storage_pb2.ForwardRequest.FromString(data)
    except DecodeError:
        return
    expect(len(generated.frames) == len(frames.frames), "as many frames as the generated class finds")
    for one, other in zip(frames.frames, generated.frames, strict=True):
        expect(bytes(one.chunk) == other.chunk, "the same bytes")


def _forward_request_seeds() -> Iterator[bytes]:
    opening = storage_pb2.ForwardRequest(open=storage_pb2.ForwardOpen())
    yield opening.SerializeToString()
    frames = [forward.OutFrame(n, [b"request" * n], 7 * n, 40 * n, 1000 * n) for n in range(1, 4)]
    for message in forward.pack(frames, FORWARD_CHUNK_BYTES_MAX):
        yield message
        yield opening.SerializeToString() + message
    yield from forward.pack(frames, most_bytes=5)


def _replica_data(data: bytes) -> None:
    frames = list(replicate.decode_replica_data(data))
    expect(sum(len(frame.records or b"") for frame in frames) <= len(data), "records lie in the message")
    assembly = Assembly(1 << 20)
    for frame in frames:
        if frame.piece is not None:
            with suppress(MalformedMessage):
                batch = assembly.add(frame.piece)
                expect(batch is None or len(batch) == frame.piece.total_bytes, "a batch is whole")
    try:
        generated = storage_pb2.ReplicateResponse.FromString(data)
    except DecodeError:
        return
    expect(len(generated.data) == len(frames), "as many frames as the generated class finds")


def _replica_data_seeds() -> Iterator[bytes]:
    frames = [
        DataFrame(1, 100, 5, base_offset=90, buffers=[b"batch", b"another"], size_bytes=12),
        DataFrame(1, 100, 5, base_offset=90, buffers=[b"piece"], size_bytes=5, piece_of=(9, 0)),
        DataFrame(200, -1, -1, diverging=(3, 70)),
        DataFrame(3, 1, 0, out_of_range=(5, 9)),
        DataFrame(4, 1, 0, error=(ErrorCode.FENCED_LEADER_EPOCH, "fenced")),
        DataFrame(5, 1, 0, move=1),
        DataFrame(6, 1 << 40, 1 << 39),
    ]
    for frame in frames:
        yield replicate.encode_replica_data([frame])
    yield replicate.encode_replica_data(frames)


def _fetch_range(data: bytes) -> None:
    step = fetch_range.scan(data)
    expect(-(1 << 63) <= step.next_offset < 1 << 63, "an offset has 64 bits")
    try:
        generated = data_pb2.FetchRangeResponse.FromString(data)
    except DecodeError:
        return
    expect(generated.next_offset == step.next_offset, "the same offset")


def _fetch_range_seeds() -> Iterator[bytes]:
    for records in (b"", b"records" * 30):
        yield fetch_range.encode_fetch_range_response(
            [records],
            len(records),
            next_offset=70,
            log_start_offset=3,
            high_watermark=1 << 40,
            topic_id=bytes(range(16)),
            leader_epoch=4,
            done=not records,
        )
    error = common_pb2.Error(code=6, message="moved")
    yield data_pb2.FetchRangeResponse(error=error, high_watermark=-1).SerializeToString()


# -- controllers ---------------------------------------------------------------------------------


def _quorum_message(data: bytes) -> None:
    message = messages.decode(memoryview(data))
    again = messages.encode(message)
    expect(again is not None, "what was taken can be sent again")
    assert again is not None
    expect(messages.decode(memoryview(again)) == message, "a message is read back")
    numbers = [v for v in message.values() if isinstance(v, int)]
    expect(all(n < NUMBER_END for n in numbers), "terms and indexes leave room for what follows")
    entries = message.get("entries", [])
    expect(len(entries) <= messages.ENTRIES_MAX, "entries are counted before they are made")
    expect(find_poison(entries) == "", "what goes into the log can be applied")
    if entries:
        first = message["prevLogIdx"] + 1
        expect([e[1] for e in entries] == list(range(first, first + len(entries))), "no gap in the log")


def _quorum_seeds() -> Iterator[bytes]:
    ids = {"directory_id": b"d" * 16, "remembered": bytes(16), "cluster_id": b"c" * 16}
    prevote = {"round": 7, "term": 3, "last_log_index": 9, "last_log_term": 2}
    common = {"type": "append_entries", "term": 3, "commit_index": 8}
    records = metadata_pb2.MetadataCommand(base_version=5, records=metadata_records())
    command = b"\0" + records.SerializeToString()
    for message in (
        {"type": "hello", "from": 1, "to": 2, "joined": True, **ids},
        {"type": "keepalive"},
        {"type": "request_vote", "term": 3, "last_log_index": 9, "last_log_term": 2},
        {"type": "response_vote", "term": 3},
        {**common, "entries": [(command, 9, 3), (b"\1", 10, 3)], "prevLogIdx": 8, "prevLogTerm": 2},
        {**common, "entries": [], "prevLogIdx": 8, "prevLogTerm": 2},
        {**common, "serialized": (b"snapshot", True, False)},
        {"type": "next_node_idx", "term": 3, "next_node_idx": 9, "reset": False, "success": True},
        {"type": "timeout_now", "term": 3},
        {"type": "prevote", **prevote},
        {"type": "prevote_reply", "round": 7, "term": 3, "granted": True},
        {"type": "term_notice", "term": 3},
    ):
        payload = messages.encode(message)
        assert payload is not None
        yield payload


_CONTEXTS: list[RoleContexts] = []


def _tls(data: bytes) -> None:
    """What a stranger says to a Raft port under TLS, up to where a certificate would have to come."""
    if not _CONTEXTS:
        with TemporaryDirectory(prefix="penstock-fuzz-") as directory:
            table = ClusterCa().issue(Path(directory), "controller", "1")
            _CONTEXTS.append(load_contexts(RoleTls.model_validate(table), "controller"))
    stream = TlsStream(_CONTEXTS[0].server, is_server=True)
    half = len(data) // 2
    heard = b"".join(stream.receive(part) for part in (data[:half], data[half:]) if part)
    expect(not heard and not stream.is_established, "nobody is heard without a certificate")
    expect(len(stream.take()) < 16 * 1024, "an answer is small")


def _tls_seeds() -> Iterator[bytes]:
    _first_word = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _first_word.check_hostname = False
    for least in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        _first_word.minimum_version = least
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        with suppress(ssl.SSLWantReadError):
            _first_word.wrap_bio(incoming, outgoing).do_handshake()
        yield outgoing.read()
    yield b"GET / HTTP/1.1\r\n\r\n"


def _certificate_name(data: bytes) -> None:
    uri = data.decode("utf-8", "surrogateescape")
    found = identity_of({"subjectAltName": (("DNS", "x"), ("URI", uri))})
    expect(str(found) == uri, "a name is written as it came")
    expect("/" not in found.name and found.role in ROLES, "a name is one part")


def _certificate_names() -> Iterator[bytes]:
    for uri in (
        "spiffe://penstock/controller/1",
        "spiffe://a.b-c/storage-node/*",
        "spiffe://x/admin/ops.eu-1",
    ):
        yield uri.encode()


def may_be_written(image: MetadataImage) -> bool:
    """Whether a controller may have written what it comes of: ids are random, so none has two names, and a quota is a
    number (`quota_entities.check_value`), where what is none equals nothing."""
    quotas = image.security.quotas.values()
    return len(image.topics) == len(image.topic_ids) and not any(
        math.isnan(value) for limits in quotas for value in limits.values()
    )


def _metadata_delta(data: bytes) -> None:
    """Records of the metadata log, as every role replays them."""
    chunk = metadata_pb2.MetadataSnapshotChunk.FromString(data)
    image = MetadataImage.from_records(chunk.records, 3)
    if not may_be_written(image):
        return
    again = MetadataImage.from_records(image.to_records(), 3)
    expect(again == image, "an image is read back from its records")


def _acl() -> metadata_pb2.AclRecord:
    return metadata_pb2.AclRecord(
        resource_type=2,
        pattern_type=3,
        resource_name="t",
        principal="User:u",
        host="*",
        operation=3,
        permission=3,
    )


def metadata_records() -> list[metadata_pb2.MetadataRecord]:
    """One record of each kind."""
    pb = metadata_pb2
    topic_id = bytes(range(16))
    record = pb.MetadataRecord
    return [
        record(cluster=pb.ClusterRecord(cluster_id=b"c" * 16)),
        record(node=pb.NodeRecord(node_id=1, rack="a")),
        record(gateway=pb.GatewayRecord(gateway_id="gw", gateway_epoch=4)),
        record(topic=pb.TopicRecord(topic_id=topic_id, name="t")),
        record(partition=pb.PartitionRecord(topic_id=topic_id, replicas=[1, 2], isr=[1], leader=1)),
        record(config=pb.ConfigRecord(resource_type="topic", resource_name="t", key="k", value="v")),
        record(config=pb.ConfigRecord(resource_type="topic", resource_name="t", key="k")),
        record(feature=pb.FeatureRecord(name="f", level=1)),
        record(producer_ids=pb.ProducerIdsRecord(next_producer_id=1000)),
        record(controller=pb.ControllerRecord(controller_id=1, directory_id=b"d" * 16)),
        record(user_credential=pb.UserCredentialRecord(user="u", mechanism=1, salt=b"s", iterations=4096)),
        record(acl=_acl()),
        record(quota=pb.QuotaRecord(user="", key="producer_byte_rate", value=1.5)),
        record(quota=pb.QuotaRecord(user="", key="producer_byte_rate")),
        record(cluster_secret=pb.ClusterSecretRecord(name="n", value=b"v")),
        record(refused_certificate=pb.RefusedCertificateRecord(serial="0a", not_after_ms=5)),
        record(acl_removed=pb.AclRemovedRecord(acl=_acl())),
        record(user_credential_removed=pb.UserCredentialRemovedRecord(user="u", mechanism=1)),
        record(topic_removed=pb.TopicRemovedRecord(topic_id=topic_id)),
        record(node_removed=pb.NodeRemovedRecord(node_id=1)),
        record(gateway_removed=pb.GatewayRemovedRecord(gateway_id="gw")),
    ]


def _metadata_seeds() -> Iterator[bytes]:
    records = metadata_records()
    yield metadata_pb2.MetadataSnapshotChunk(records=records).SerializeToString()
    for count in (1, 4, 8):
        yield metadata_pb2.MetadataSnapshotChunk(records=records[:count]).SerializeToString()


# -- the PROXY protocol --------------------------------------------------------------------------


def _proxy_header(data: bytes) -> None:
    header = parse_proxy_header(data)
    if header is None:
        expect(len(data) < V2_BYTES_MAX, "a header that is never whole is refused")
        return
    expect(0 < header.size_bytes <= len(data), "a header ends inside what was read")
    expect(parse_proxy_header(data[: header.size_bytes]) == header, "what follows it does not matter")


def _proxy_seeds() -> Iterator[bytes]:
    yield b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 9092\r\n"
    yield b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 9092\r\nrest"
    yield b"PROXY UNKNOWN whatever\r\n"
    signature = b"\r\n\r\n\x00\r\nQUIT\n"
    yield signature + b"\x21\x11\x00\x0c" + bytes((192, 0, 2, 1, 192, 0, 2, 2, 220, 4, 35, 132))
    yield signature + b"\x21\x21\x00\x24" + bytes(range(36))
    yield signature + b"\x20\x00\x00\x00"
    yield signature + b"\x21\x11\x00\x10" + bytes(12) + b"\x03\x00\x01\x00"


REFUSED: Final = (MalformedMessage,)

# -- HTTP/2 --------------------------------------------------------------------------------------


class _Owner:
    """Whoever serves a call: echoes it."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def answered(self, headers: Headers) -> None:
        expect(False, "a server is answered nothing")

    def woken(self) -> None:
        stream = self._stream
        while (message := stream.take()) is not None:
            if not stream.is_over and not stream.self_ended:
                stream.connection.send(stream, message)
        if stream.remote_ended and not stream.unsent:
            stream.connection.head(stream, [("grpc-status", "0")], ends=True)

    def room(self) -> None:
        self.woken()

    def broken(self, error: BadMessage) -> None:
        self._stream.connection.reset(self._stream, http2.CANCEL, str(error))


class _Calls:
    """What a server would be told."""

    def __init__(self) -> None:
        self.bytes_out = 0
        self.connection = Connection(self, self._out, is_client=False, message_bytes_most=1 << 20)
        self.connection.begin()

    def _out(self, buffers: list[Buffer]) -> None:
        self.bytes_out += sum(map(len, buffers))

    def opened(self, stream: Stream, headers: Headers) -> None:
        stream.owner = _Owner(stream)
        self.connection.head(stream, [(":status", "200")])

    def going_away(self) -> None:
        pass


def _http2(data: bytes) -> None:
    """Cut in two at a place that the input says: what comes of it must not depend on that."""
    whole, cut = _Calls(), _Calls()
    at = data[0] if data else 0
    broken = [_pass(whole.connection, [data]), _pass(cut.connection, [data[:at], data[at:]])]
    expect(broken[0] == broken[1], "the same whole and in two")
    expect(whole.bytes_out == cut.bytes_out, "as many bytes answered whole and in two")
    expect(len(whole.connection.streams) <= whole.connection.streams_max, "no more streams than may be")
    if broken[0]:
        raise http2.BrokenPeer(broken[0], "")


class _Answers:
    """Whoever has called: takes what comes."""

    def __init__(self) -> None:
        self.heads = self.bytes_in = 0
        self.ends: dict[int, tuple[int, str] | None] = {}
        self.connection = Connection(self, self._out, is_client=True, message_bytes_most=1 << 20)
        self.connection.begin()
        self.streams = [self.connection.open([(":path", "/penstock.v1.Storage/Forward")]) for _ in range(3)]
        for stream in self.streams:
            stream.owner = _Caller(self, stream)
        self.connection.end(self.streams[0])
        self.connection.send(self.streams[1], b"x" * 100_000)

    def _out(self, buffers: list[Buffer]) -> None:
        pass

    def opened(self, stream: Stream, headers: Headers) -> None:
        expect(False, "servers begin nothing")

    def going_away(self) -> None:
        expect(self.connection.is_gone, "it takes nothing new")


class _Caller:
    def __init__(self, answers: _Answers, stream: Stream) -> None:
        self._answers, self._stream = answers, stream

    def answered(self, headers: Headers) -> None:
        self._answers.heads += len(headers)

    def woken(self) -> None:
        while (message := self._stream.take()) is not None:
            self._answers.bytes_in += len(message)
        if self._stream.is_over:
            self._answers.ends.setdefault(self._stream.number, self._stream.error)

    def room(self) -> None:
        expect(not self._stream.unsent, "all of it has gone")

    def broken(self, error: BadMessage) -> None:
        self._stream.connection.reset(self._stream, http2.CANCEL, str(error))


def _http2_client(data: bytes) -> None:
    """The same of the other side, with three calls under way."""
    whole, cut = _Answers(), _Answers()
    at = data[0] if data else 0
    broken = [_pass(whole.connection, [data]), _pass(cut.connection, [data[:at], data[at:]])]
    expect(broken[0] == broken[1], "the same whole and in two")
    expect(whole.bytes_in == cut.bytes_in and whole.heads == cut.heads, "the same answers whole and in two")
    expect(whole.ends == cut.ends, "the same ends whole and in two")
    expect(
        all(each.is_over or each.number not in whole.ends for each in whole.streams), "what is over stays so"
    )
    if broken[0]:
        raise http2.BrokenPeer(broken[0], "")


def _http2_client_seeds() -> Iterator[bytes]:
    said: list[bytes] = []
    server = Connection(
        _Nobody(),
        lambda buffers: said.extend(map(bytes, buffers)),
        is_client=False,
        message_bytes_most=1 << 20,
    )
    client = _Answers.__new__(_Answers)
    out: list[bytes] = []
    client._out = lambda buffers: out.extend(map(bytes, buffers))  # type: ignore[method-assign]
    client.__init__()  # type: ignore[misc]
    server.received(memoryview(b"".join(out)))
    yield b"".join(said)
    first, second, third = server.streams[1], server.streams[3], server.streams[5]
    server.head(first, [(":status", "200"), ("content-type", "application/grpc")])
    server.send(first, b"message")
    yield b"".join(said)
    server.head(first, [("grpc-status", "0")], ends=True)
    server.head(second, [(":status", "200"), ("grpc-status", "7"), ("grpc-message", "no")], ends=True)
    server.reset(third, http2.REFUSED_STREAM)
    yield b"".join(said)
    server.ping()
    server.go_away(http2.ENHANCE_YOUR_CALM, "too many")
    yield b"".join(said)


class _Nobody:
    def opened(self, stream: Stream, headers: Headers) -> None:
        pass

    def going_away(self) -> None:
        pass


def _pass(connection: Connection, parts: list[bytes]) -> int:
    try:
        for part in parts:
            connection.received(memoryview(part))
            while connection.is_behind:
                connection.received(memoryview(b""))
    except http2.BrokenPeer as error:
        return error.code
    return 0


def _http2_seeds() -> Iterator[bytes]:
    said: list[bytes] = []

    class Client(_Calls):
        def __init__(self) -> None:
            self.connection = Connection(
                self,
                lambda buffers: said.extend(bytes(b) for b in buffers),
                is_client=True,
                message_bytes_most=1 << 20,
            )
            self.connection.begin()

    client = Client().connection
    yield b"".join(said)
    path = [
        (":method", "POST"),
        (":path", "/penstock.v1.Storage/Forward"),
        ("content-type", "application/grpc"),
    ]
    one = client.open(path)
    client.send(one, b"message")
    client.end(one)
    yield b"".join(said)
    two = client.open([*path, ("grpc-timeout", "1S")])
    client.send(two, b"x" * 300)
    client.ping()
    client.reset(two, http2.CANCEL)
    yield b"".join(said)
    client.say(http2.frame(http2.DATA, http2.PADDED | http2.END_STREAM, 5, b"\x02ab\0\0"))
    client.say(http2.window_update(0, 100) + http2.settings({4: 1000}) + http2.goaway(0, 0))
    yield b"".join(said)


TARGETS: Final = [
    Target("gateway.forward_response", _forward_response, REFUSED, _forward_response_seeds, share=40),
    Target("node.forward_request", _forward_request, REFUSED, _forward_request_seeds, share=40),
    Target("node.replica_data", _replica_data, REFUSED, _replica_data_seeds, share=40),
    Target("gateway.fetch_range", _fetch_range, REFUSED, _fetch_range_seeds, share=20),
    Target("controller.tls", _tls, (TlsFault, TlsEnd), _tls_seeds, share=5, input_bytes_max=2048),
    Target(
        "certificate.name",
        _certificate_name,
        (BadIdentity,),
        _certificate_names,
        share=20,
        input_bytes_max=512,
        words=(b"spiffe://", b"controller", b"/*", b"%2f", b".."),
    ),
    Target(
        "http2.server",
        _http2,
        (http2.BrokenPeer,),
        _http2_seeds,
        share=40,
        words=(http2.PREFACE, b"application/grpc", b":path", b"grpc-timeout"),
    ),
    Target(
        "http2.client",
        _http2_client,
        (http2.BrokenPeer,),
        _http2_client_seeds,
        share=40,
        words=(b"application/grpc", b":status", b"grpc-status", b"grpc-message"),
    ),
    Target("controller.message", _quorum_message, (messages.BadMessage,), _quorum_seeds, share=40),
    Target(
        "metadata.records",
        _metadata_delta,
        (InvariantBroken, DecodeError),
        _metadata_seeds,
        share=10,
        input_bytes_max=1024,
    ),
    Target(
        "proxy.header",
        _proxy_header,
        (ValueError,),
        _proxy_seeds,
        share=40,
        input_bytes_max=V2_BYTES_MAX + 16,
        words=(b"PROXY ", b"TCP4", b"TCP6", b"UNKNOWN", b"\r\n", b"::", b"255.255.255.255", b" 65535"),
    ),
]
