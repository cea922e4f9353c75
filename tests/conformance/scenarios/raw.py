"""Frames that no client sends: garbage, cut short, too large, wrong versions. Kafka says what becomes of them."""

from __future__ import annotations

import struct
from typing import Any

from conformance import build
from conformance.client import Client
from conformance.frame import Case, Outcome, scenario
from conformance.wire import Closed, Wire, frame_of, leader_of, reaction
from penstock_kafka.records.build import NewRecord, build_batch

SECTION = "The wire: bad input"
RAW = ("raw",)

PLAIN_APIS: dict[str, dict[str, Any]] = {
    "api_versions": {"client_software_name": "raw", "client_software_version": "1"},
    "metadata": {"topics": []},
    "find_coordinator": {"key": "g", "coordinator_keys": ["g"]},
    "init_producer_id": {
        "transactional_id": None,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    },
    "list_groups": {},
    "describe_groups": {"groups": ["nobody"]},
    "describe_cluster": {},
    "create_topics": {"topics": [], "timeout": 1_000},
    "delete_topics": {"topic_names": [], "topics": [], "timeout": 1_000},
    "heartbeat": {"group_id": "g", "member_id": "m", "generation_id": 1},
}
"""Requests that any node understands."""


def sized(frame: bytes) -> bytes:
    """With its length."""
    return struct.pack(">i", len(frame)) + frame


def header(api_key: int, version: int, *, client_id: bytes = b"raw") -> bytes:
    """A request header of form 1."""
    return struct.pack(">hhih", api_key, version, 7, len(client_id)) + client_id


@scenario("wire-framing", SECTION, clients=RAW, fast=True)
def framing(c: Client, t: Case) -> Outcome:
    """lengths that cannot be, and other protocols"""
    bytes_of = {
        "negative length": struct.pack(">i", -5) + b"x" * 20,
        "length 0": struct.pack(">i", 0),
        "length 3": sized(b"\0\x12\0"),
        "length 7": sized(b"\0\x12\0\0\0\0\0"),
        "2 GB": struct.pack(">i", 2_000_000_000) + b"x" * 100,
        "just over socket.request.max.bytes": struct.pack(">i", 104_857_601) + b"x" * 100,
        "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "TLS": bytes.fromhex("1603010200010001fc0303") + b"\x00" * 60,
        "all ones": b"\xff" * 64,
    }
    found = {name: reaction(t.bootstrap, data) for name, data in bytes_of.items()}
    found["a frame that never ends"] = reaction(t.bootstrap, struct.pack(">i", 100) + b"\0" * 10, wait_s=2)
    found["a frame cut off by the end"] = reaction(
        t.bootstrap, struct.pack(">i", 100) + b"\0" * 10, half_close=True
    )
    return found


@scenario("wire-unknown-api", SECTION, clients=RAW, fast=True)
def unknown_api(c: Client, t: Case) -> Outcome:
    """api keys that are not there, were taken out, or are for brokers among themselves"""
    keys = (-1, 4, 5, 6, 7, 58, 59, 63, 99, 500, 32_767)
    return {str(key): reaction(t.bootstrap, sized(header(key, 0) + b"\0" * 20)) for key in keys}


@scenario("wire-unsupported-version", SECTION, clients=RAW, fast=True, seconds=120)
def unsupported_version(c: Client, t: Case) -> Outcome:
    """versions that no broker has: closed, but for ApiVersions"""
    found = {}
    for api in ("produce", "fetch", "list_offsets", *PLAIN_APIS):
        key = int(build.entity(api, build.versions(api)[-1]).__api_key__)
        for version in (99, -1):
            found[f"{api} {version}"] = reaction(t.bootstrap, sized(header(key, version) + b"\0" * 30))
    return found


@scenario("wire-retired-version", SECTION, clients=RAW)
def retired_version(c: Client, t: Case) -> Outcome:
    """versions that Kafka 4 took out (KIP-896)"""
    retired = {
        1: (0, 3), 2: (0, 0), 8: (0, 1), 9: (0, 0), 19: (0, 1), 20: (0, 0), 23: (0, 1), 32: (0, 0),
    }  # fmt: skip
    found = {}
    for key, (low, high) in retired.items():
        for version in range(low, high + 1):
            found[f"{key} {version}"] = reaction(t.bootstrap, sized(header(key, version) + b"\0" * 60))
    return found


def _cut(api: str, version: int, values: dict[str, Any], address: str) -> dict[str, str]:
    frame = frame_of(build.request(api, version, values))
    start = 8 + 2 + 3  # key, version, correlation id, client id
    lengths = {"last byte": len(frame) - 1, "header only": start, "half a header": 6}
    return {name: reaction(address, sized(frame[:length]))[:8] for name, length in lengths.items()}


@scenario("wire-cut-short", SECTION, clients=RAW, seconds=240)
def cut_short(c: Client, t: Case) -> Outcome:
    """each API's request without its end: what it needs is not there"""
    found = {}
    for api, values in PLAIN_APIS.items():
        for version in (build.versions(api)[0], build.versions(api)[-1]):
            if api == "api_versions" and version < 3:
                continue
            if _known_to_both(api, version):
                found[f"{api} {version}"] = _cut(api, version, values, t.bootstrap)
    return found


def _known_to_both(api: str, version: int) -> bool:
    key = int(build.entity(api, version).__api_key__)
    low, high = KAFKA_RANGES.get(key, (0, -1))
    return low <= version <= high


KAFKA_RANGES = {
    3: (0, 13), 10: (0, 6), 12: (0, 4), 15: (0, 6), 16: (0, 5), 18: (0, 4), 19: (2, 7), 20: (1, 6), 22: (0, 5),
    60: (0, 2),
}  # fmt: skip
"""What Kafka 4.3 has of the plain APIs."""


@scenario("wire-trailing-bytes", SECTION, clients=RAW, seconds=120)
def trailing(c: Client, t: Case) -> Outcome:
    """a right request with bytes behind it"""
    found = {}
    for api, values in PLAIN_APIS.items():
        version = max(v for v in build.versions(api) if _known_to_both(api, v))
        frame = frame_of(build.request(api, version, values))
        found[api] = reaction(t.bootstrap, sized(frame + b"\x01\x02\x03"))[:8]
    return found


@scenario("wire-large-counts", SECTION, clients=RAW, fast=True)
def large_counts(c: Client, t: Case) -> Outcome:
    """arrays and strings that say they are longer than the request"""
    cases = {
        "metadata 1: 2 billion topics": header(3, 1) + struct.pack(">i", 2_000_000_000),
        "metadata 1: -2 topics": header(3, 1) + struct.pack(">i", -2),
        "metadata 1: name of 30,000": header(3, 1) + struct.pack(">ih", 1, 30_000) + b"abc",
        "metadata 1: null name": header(3, 1) + struct.pack(">ih", 1, -1),
        "metadata 1: negative name": header(3, 1) + struct.pack(">ih", 1, -7),
        "metadata 9: 4 billion topics": header(3, 9) + b"\0" + b"\xff\xff\xff\xff\x0f",
        "metadata 9: endless varint": header(3, 9) + b"\0" + b"\xff" * 12,
        "metadata 9: many tags": header(3, 9) + b"\xff\xff\xff\xff\x07",
        "client id of 30,000": struct.pack(">hhih", 3, 1, 7, 30_000) + b"abc",
        "client id not UTF-8": struct.pack(">hhih", 18, 0, 7, 2) + b"\xc3\x28",
    }
    return {name: reaction(t.bootstrap, sized(frame))[:8] for name, frame in cases.items()}


@scenario("wire-unknown-tags", SECTION, clients=RAW, fast=True)
def unknown_tags(c: Client, t: Case) -> Outcome:
    """tagged fields that nobody knows are skipped, in header and body (KIP-482)"""
    tag = b"\x01\xb0\x09\x03abc"  # one field, tag 1200, three bytes
    body = b"\x01\0\0\0"  # no topics, no creation, no operations
    cases = {
        "in the header": header(3, 9) + tag + body + b"\0",
        "in the body": header(3, 9) + b"\0" + body + tag,
        "cut off": header(3, 9) + b"\0" + body + b"\x01\xb0\x09\x70abc",
        "doubled": header(3, 9) + b"\0" + body + b"\x02\xb0\x09\x01a\xb0\x09\x01b",
    }
    return {name: reaction(t.bootstrap, sized(frame))[:8] for name, frame in cases.items()}


@scenario("wire-pipelined", SECTION, clients=RAW, fast=True)
def pipelined(c: Client, t: Case) -> Outcome:
    """many requests at once, slow and quick ones: answered in their order"""
    topic = t.topic()
    address = leader_of(t.bootstrap, topic)
    fetch = {
        "max_wait": 1_000, "min_bytes": 1, "max_bytes": 1_000, "replica_id": -1, "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [{"partition": 0, "partition_max_bytes": 1_000}]}],
    }  # fmt: skip
    requests = [
        build.request("fetch", 11, fetch),
        build.request("metadata", 4, {"topics": []}),
        build.request("api_versions", 0, {}),
        build.request("fetch", 11, fetch | {"max_wait": 0}),
        build.request("list_groups", 2, {}),
    ]
    with Wire(address) as wire:
        wire.send(b"".join(sized(frame_of(one, 40 + n)) for n, one in enumerate(requests)))
        return [struct.unpack(">i", wire.receive_frame()[:4])[0] for _ in requests]


@scenario("wire-bad-one-in-the-middle", SECTION, clients=RAW)
def bad_middle(c: Client, t: Case) -> Outcome:
    """a good request, a bad one, a good one: the first is answered"""
    good = sized(frame_of(build.request("metadata", 4, {"topics": []}), 1))
    bad = sized(header(99, 0))
    answered = 0
    with Wire(t.bootstrap) as wire:
        wire.send(good + bad + good)
        try:
            while True:
                wire.receive_frame()
                answered += 1
        except Closed:
            pass  # that is what is looked at
    return answered


@scenario("wire-first-request", SECTION, clients=RAW)
def no_api_versions(c: Client, t: Case) -> Outcome:
    """no ApiVersions before the first request, and ApiVersions twice"""
    with Wire(t.bootstrap) as wire:
        first = len(wire.call(build.request("metadata", 4, {"topics": []})).topics)
        for version in (0, 3, 0):
            values = PLAIN_APIS["api_versions"]
            assert int(wire.call(build.request("api_versions", version, values)).error_code) == 0
    return first


@scenario("wire-api-versions-names", SECTION, clients=RAW)
def software_names(c: Client, t: Case) -> Outcome:
    """names of software that KIP-511 forbids"""
    found = {}
    for name in ("raw", "", "-x", "a b", "ok.name-1", "x" * 300, "ä"):
        values = {"client_software_name": name, "client_software_version": "1"}
        with Wire(t.bootstrap) as wire:
            try:
                found[name] = wire.call(build.request("api_versions", 3, values)).error_code.name
            except Closed:
                found[name] = "closed"
    return found


def _good() -> bytes:
    return bytes(build_batch([NewRecord(None, b"good")]))


def _flip(batch: bytes, position: int) -> bytes:
    return batch[:position] + bytes([batch[position] ^ 1]) + batch[position + 1 :]


def produce_values(topic: str, topic_id: Any, records: bytes | None, **more: Any) -> dict[str, Any]:
    """A Produce request for partition 0."""
    part = {"index": more.pop("partition", 0), "records": records}
    return {
        "transactional_id": None, "acks": -1, "timeout": 30_000,
        "topic_data": [{"name": topic, "topic_id": topic_id, "partition_data": [part]}],
        **more,
    }  # fmt: skip


def produced(answer: Any) -> list[Any]:
    """Error and offset of the one partition."""
    part = answer.responses[0].partition_responses[0]
    return [part.error_code.name.upper(), int(part.base_offset)]


@scenario("wire-produce-checks", SECTION, clients=RAW, fast=True, seconds=120)
def produce_checks(c: Client, t: Case) -> Outcome:
    """batches that are broken in every way, and the code that each gets

    Not null in place of a batch: Kafka 4.3.1 then never answers.
    """
    topic = t.topic(max_message_bytes="100000")
    address = leader_of(t.bootstrap, topic)
    good = _good()
    two_records = bytes(build_batch([NewRecord(None, b"1"), NewRecord(None, b"2")]))
    batches = {
        "good": good,
        "a flipped bit in a record": _flip(good, len(good) - 2),
        "a flipped bit in the CRC": _flip(good, 18),
        "cut short": good[:-3],
        "only a header": good[:61],
        "half a header": good[:30],
        "empty": b"",
        "two batches": good + good,
        "magic 0": good[:16] + b"\x00" + good[17:],
        "magic 1": good[:16] + b"\x01" + good[17:],
        "magic 3": good[:16] + b"\x03" + good[17:],
        "length negative": good[:8] + struct.pack(">i", -1) + good[12:],
        "length 10": good[:8] + struct.pack(">i", 10) + good[12:],
        "length too large": good[:8] + struct.pack(">i", 1_000_000) + good[12:],
        "base offset 5": struct.pack(">q", 5) + good[8:],
        "too large": bytes(build_batch([NewRecord(None, b"x" * 100_001)])),
        "two records": two_records,
    }
    found = {}
    for name, batch in batches.items():
        with Wire(address) as wire:
            try:
                answer = wire.call(build.request("produce", 9, produce_values(topic, None, batch)))
                found[name] = produced(answer)[0]
            except Closed:
                found[name] = "closed"
            except TimeoutError:
                found[name] = "silent"
    with Wire(address) as wire:
        found["at last"] = produced(wire.call(build.request("produce", 9, produce_values(topic, None, good))))
    return found


@scenario("wire-produce-requests", SECTION, clients=RAW, fast=True)
def produce_requests(c: Client, t: Case) -> Outcome:
    """acks that are none, partitions and topics that are not there, topics named twice"""
    topic = t.topic()
    address = leader_of(t.bootstrap, topic)
    cases: dict[str, dict[str, Any]] = {
        "acks 2": produce_values(topic, None, _good(), acks=2),
        "acks -2": produce_values(topic, None, _good(), acks=-2),
        "partition 9": produce_values(topic, None, _good(), partition=9),
        "partition -1": produce_values(topic, None, _good(), partition=-1),
        "unknown topic": produce_values(t.name("nowhere"), None, _good()),
        "bad name": produce_values("a b", None, _good()),
        "empty name": produce_values("", None, _good()),
        "internal topic": produce_values("__consumer_offsets", None, _good()),
        "transactional": produce_values(topic, None, _good(), transactional_id="tx"),
    }
    found: dict[str, Any] = {}
    for name, values in cases.items():
        with Wire(address) as wire:
            try:
                found[name] = produced(wire.call(build.request("produce", 9, values)))
            except Closed:
                found[name] = "closed"
    found["acks 0, unknown topic"] = _without_acks(
        address, produce_values(t.name("nowhere"), None, _good(), acks=0)
    )
    found["acks 0"] = _without_acks(address, produce_values(topic, None, _good(), acks=0))
    return found


def _without_acks(address: str, values: dict[str, Any]) -> str:
    """Whether the connection lives on, seen by the next request on it."""
    with Wire(address) as wire:
        wire.send_frame(frame_of(build.request("produce", 9, values), 1))
        try:
            wire.call(build.request("metadata", 4, {"topics": []}))
        except Closed:
            return "closed"
    return "open"


def _sequence(batch: bytes, producer_id: int, epoch: int, sequence: int) -> bytes:
    from penstock_kafka.records.crc import crc32c

    body = batch[21:43] + struct.pack(">qhi", producer_id, epoch, sequence) + batch[57:]
    return batch[:17] + struct.pack(">I", crc32c(body)) + body


@scenario("wire-idempotence", SECTION, clients=RAW, fast=True)
def idempotence(c: Client, t: Case) -> Outcome:
    """duplicates, gaps, old and new epochs, sequences that wrap"""
    topic = t.topic()
    t.fill(topic, ["the leader leads"])
    address = leader_of(t.bootstrap, topic)
    batch = bytes(build_batch([NewRecord(None, b"1"), NewRecord(None, b"2")]))
    with Wire(address) as wire:

        def new_id() -> int:
            values = {
                "transactional_id": None,
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            return int(wire.call(build.request("init_producer_id", 3, values)).producer_id)

        def send(producer: int, epoch: int, sequence: int) -> Any:
            records = _sequence(batch, producer, epoch, sequence)
            return produced(wire.call(build.request("produce", 9, produce_values(topic, None, records))))

        one, two, three = new_id(), new_id(), new_id()
        steps = [
            *((one, 0, s) for s in (0, 2, 2, 4, 6, 8, 10, 2, 0, 20, 1, 12)),
            *((one, e, s) for e, s in ((1, 5), (1, 0), (0, 14), (1, 2), (3, 0))),
            *((two, 0, s) for s in (7, 9)),
            *((three, e, s) for e, s in ((0, 2_147_483_646), (0, 0), (0, -1), (-1, 3))),
        ]
        return [send(*step) for step in steps]


@scenario("wire-fetch", SECTION, clients=RAW, fast=True)
def fetch(c: Client, t: Case) -> Outcome:
    """offsets out of range, epochs of the past and the future, sessions, limits of 0, unknown places"""
    topic = t.topic()
    t.fill(topic, ["a", "b", "c"])
    address = leader_of(t.bootstrap, topic)

    def ask(name: str = topic, partition: int = 0, offset: int = 0, **more: Any) -> Any:
        part = {
            "partition": partition, "fetch_offset": offset, "partition_max_bytes": more.pop("limit", 10_000),
            "current_leader_epoch": more.pop("epoch", -1), "last_fetched_epoch": -1, "log_start_offset": -1,
        }  # fmt: skip
        values = {
            "replica_id": -1, "max_wait": 10, "min_bytes": 1, "max_bytes": 100_000, "session_epoch": -1,
            "topics": [{"topic": name, "partitions": [part]}],
        } | more  # fmt: skip
        with Wire(address) as wire:
            try:
                answer = wire.call(build.request("fetch", 12, values))
            except Closed:
                return "closed"
        parts = [
            [p.error_code.name.upper(), int(p.high_watermark), len(p.records or b"") > 0]
            for one in answer.responses
            for p in one.partitions
        ]
        return [answer.error_code.name.upper(), parts]

    return {
        "good": ask(),
        "at the end": ask(offset=3),
        "past the end": ask(offset=4),
        "negative": ask(offset=-1),
        "unknown topic": ask(t.name("nowhere")),
        "unknown partition": ask(partition=7),
        "old epoch": ask(epoch=-1),
        "future epoch": ask(epoch=1_000),
        "0 bytes of the partition": ask(limit=0),
        "0 bytes in all": ask(max_bytes=0),
        "unknown session": ask(session_id=4_711, session_epoch=3),
        "session to close": ask(session_id=4_711, session_epoch=-1),
        "read committed": ask(isolation_level=1),
        "isolation 7": ask(isolation_level=7),
        "as a replica": ask(replica_id=77),
    }


@scenario("wire-list-offsets", SECTION, clients=RAW, fast=True)
def list_offsets(c: Client, t: Case) -> Outcome:
    """every special timestamp, in the versions that have them"""
    topic = t.topic()
    t.fill(topic, ["a", "b", "c"], timestamp_ms=1_700_000_000_000)
    address = leader_of(t.bootstrap, topic)
    found: dict[str, list[Any]] = {}
    for version in (1, 4, 7, 8, 9, 10):
        for at in (-1, -2, -3, -4, -5, -6, 0, 1_700_000_000_001):
            part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": at}
            values = {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}
            with Wire(address) as wire:
                try:
                    answer = wire.call(build.request("list_offsets", version, values))
                except Closed:
                    found[f"{version} {at}"] = ["closed"]
                    continue
            one = answer.topics[0].partitions[0]
            found[f"{version} {at}"] = [one.error_code.name.upper(), int(one.offset)]
    return found
