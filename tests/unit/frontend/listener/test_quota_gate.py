"""Quotas at a listener: what counts when, what clients are told, when their connections are read again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any

import pytest

from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.security import SecurityImage
from penstock_core.security.principal import Principal
from penstock_core.security.quota_book import QuotaBook
from penstock_core.security.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)
from penstock_frontend.listener.listener import NO_RESPONSE, Connection, Response
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import Charge, QuotaGate, Timed
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import ApiKey
from penstock_kafka.wire.fetch import (
    FetchRequest,
    FetchResult,
    decode_fetch,
    decode_fetch_response,
    encode_fetch_request,
    encode_fetch_response,
)
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.produce import ProduceResult, decode_produce_response, encode_produce_response
from penstock_proto.v1 import controller_pb2 as pb
from penstock_proto.v1 import metadata_pb2
from support.listening import Run, connected, listening, metric, read_response
from support.waiting import eventually

ALICE = QuotaEntity("alice")
QUOTA = 1_000.0
PRODUCE_VERSION = 9


class Client:
    """A connection as far as the gate is concerned."""

    def __init__(self, user: str = "alice") -> None:
        self.principal = Principal("User", user)
        self.quota_account: Any = None
        self.muted_ms: list[int] = []

    def mute(self, throttle_ms: int) -> None:
        self.muted_ms.append(throttle_ms)


class Gate:
    """A gate with a clock of the test's own."""

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        self.now_ms = 1_000
        self.metrics = KafkaMetrics()
        self.gate = QuotaGate(QuotaBook(), lambda: self.now_ms, self.metrics)
        self.image = MetadataImage()
        self.set(quotas)

    def set(self, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> None:
        new = MetadataImage(security=SecurityImage(quotas=quotas))
        self.gate.metadata_changed(self.image, new)
        self.image = new

    def arrive(self, client: Client, frame: bytearray) -> Charge | None:
        return self.gate.arrived(client, frame)

    def produce(self, client: Client, size: int, client_id: str = "c") -> tuple[Charge | None, int]:
        """A Produce that is answered at once; the throttle time that its answer names."""
        frame = produce(size, client_id)
        charge = self.arrive(client, frame)
        response = encode_produce_response(parse_request_header(frame), [ProduceResult("t", None, 0, 0, 5)])
        if charge is not None:
            told = self.gate.answered(client, charge, response)
            response = told if isinstance(told, bytes) else b"".join(told)
        answer = decode_produce_response(response, PRODUCE_VERSION)
        assert answer.results[0].base_offset == 5
        return charge, answer.throttle_ms


def produce(size: int, client_id: str = "c") -> bytearray:
    head = request_header(ApiKey.PRODUCE, PRODUCE_VERSION, 7, client_id)
    return bytearray(head + bytes(size - len(head)))


def fetch(max_bytes: int = 50_000_000, version: int = 12) -> bytearray:
    return bytearray(encode_fetch_request(version, 7, "c", FetchRequest(500, 1, max_bytes)))


def heartbeat() -> bytearray:
    return bytearray(request_header(ApiKey.HEARTBEAT, 4, 7, "c") + bytes(20))


def test_where_nobody_has_a_quota_the_gate_is_not_active() -> None:
    assert not Gate({}).gate.is_active
    assert not Gate({QuotaEntity(ip=DEFAULT): {CONNECTION_CREATION_RATE: 1.0}}).gate.is_active
    assert Gate({ALICE: {PRODUCER_BYTE_RATE: 1.0}}).gate.is_active
    gate = Gate({ALICE: {PRODUCER_BYTE_RATE: 1.0}})
    gate.set({})
    assert not gate.gate.is_active


def test_a_producer_is_answered_and_then_waits() -> None:
    gate, client = Gate({ALICE: {PRODUCER_BYTE_RATE: QUOTA}}), Client()
    _, throttle_ms = gate.produce(client, 3_000)
    assert (throttle_ms, client.muted_ms) == (0, []), "three seconds' worth may come at once"
    _, throttle_ms = gate.produce(client, 500)
    assert throttle_ms == 500
    assert client.muted_ms == [500, 500], "from its arrival on, and from its answer on"
    gate.now_ms += 500
    assert gate.produce(client, 100)[1] == 100
    assert gate.metrics.throttled == {PRODUCER_BYTE_RATE: 2}
    assert gate.metrics.throttled_ms[PRODUCER_BYTE_RATE] == 600


def test_others_do_not_wait() -> None:
    gate = Gate({ALICE: {PRODUCER_BYTE_RATE: QUOTA}})
    gate.produce(Client(), 50_000)
    assert gate.produce(Client("bob"), 50_000) == (None, 0)


def test_the_clients_of_a_user_share_its_quota() -> None:
    gate = Gate({ALICE: {PRODUCER_BYTE_RATE: QUOTA}})
    assert gate.produce(Client(), 3_000, "one")[1] == 0
    assert gate.produce(Client(), 1_000, "two")[1] == 1_000


def test_an_account_is_looked_up_anew_when_quotas_change_or_the_client_does() -> None:
    gate, client = Gate({ALICE: {PRODUCER_BYTE_RATE: QUOTA}}), Client()
    gate.produce(client, 3_000)
    gate.set({QuotaEntity(None, "other"): {PRODUCER_BYTE_RATE: QUOTA}})
    assert gate.produce(client, 50_000) == (None, 0)
    assert gate.produce(client, 4_000, "other")[1] == 1_000
    client.principal = Principal("User", "bob")
    assert gate.produce(client, 1_000, "other")[1] == 2_000


def test_a_produce_without_an_answer_still_waits() -> None:
    gate, client = Gate({ALICE: {PRODUCER_BYTE_RATE: QUOTA, REQUEST_PERCENTAGE: 1.0}}), Client()
    charge = gate.arrive(client, produce(4_000))
    assert charge is not None
    charge.spent_s = 5.0
    gate.gate.unanswered(client, charge)
    assert client.muted_ms == [1_000, 1_000], "its request time is not counted, as in Kafka"


def answer_fetch(gate: Gate, client: Client, frame: bytearray, size: int) -> tuple[int, int]:
    """Bytes of records, and the throttle time."""
    charge = gate.arrive(client, frame)
    assert charge is not None
    header = parse_request_header(frame)
    buffers = charge.answer
    if buffers is None:
        buffers = encode_fetch_response(header, [FetchResult("t", None, 0, records=[bytes(size)])])
    told = gate.gate.answered(client, charge, buffers)
    answer = decode_fetch_response(told if isinstance(told, bytes) else b"".join(told), header.api_version)
    return sum(len(r) for result in answer.results for r in result.records), answer.throttle_ms


def test_a_consumer_that_is_over_gets_an_empty_answer() -> None:
    gate, client = Gate({ALICE: {CONSUMER_BYTE_RATE: QUOTA}}), Client()
    assert answer_fetch(gate, client, fetch(), 2_000) == (2_000, 0)
    size, throttle_ms = answer_fetch(gate, client, fetch(), 5_000)
    assert size == 5_000, "what was read for it is not thrown away"
    assert 4_000 < throttle_ms < 4_300, "headers count too"
    assert answer_fetch(gate, client, fetch(), 5_000) == (0, throttle_ms)
    gate.now_ms += throttle_ms
    assert answer_fetch(gate, client, fetch(), 500)[0] == 500


def test_a_fetch_asks_for_what_is_left() -> None:
    gate, client = Gate({ALICE: {CONSUMER_BYTE_RATE: QUOTA}}), Client()
    frame = fetch()
    gate.arrive(client, frame)
    assert decode_fetch(frame, parse_request_header(frame)).max_bytes == 3_000
    frame = fetch(max_bytes=10)
    gate.arrive(client, frame)
    assert decode_fetch(frame, parse_request_header(frame)).max_bytes == 10


@pytest.mark.parametrize(
    "frame", [bytearray(b"\x00\x01"), bytearray(b"\x00\x01\x00\x0c\x00\x00\x00\x07\x7f\xff")]
)
def test_what_cannot_be_read_is_left_to_its_reader(frame: bytearray) -> None:
    gate, client = Gate({ALICE: {CONSUMER_BYTE_RATE: QUOTA}}), Client()
    charge = gate.arrive(client, frame)
    assert charge is None or charge.answer is None


def test_request_time_is_throttled_for_a_second_at_most() -> None:
    gate, client = Gate({ALICE: {REQUEST_PERCENTAGE: 10.0}}), Client()
    frame = heartbeat()
    charge = gate.arrive(client, frame)
    assert charge is not None
    charge.spent_s = 0.35  # three seconds may come at once, 50 ms are too much
    header = parse_request_header(frame)
    told = gate.gate.answered(client, charge, codec.respond(header, error_code=0))
    answer = codec.decode_response(ApiKey.HEARTBEAT, 4, told if isinstance(told, bytes) else b"".join(told))[
        1
    ]
    assert round(answer.throttle_time.total_seconds(), 3) == 0.5
    charge.spent_s = 100.0
    gate.gate.answered(client, charge, codec.respond(header, error_code=0))
    assert client.muted_ms == [500, 1_000]
    assert gate.metrics.throttled == {REQUEST_PERCENTAGE: 2}


def test_a_coroutine_is_charged_for_its_steps(run: Run) -> None:
    charge = Charge(QuotaBook().account("a", "c", 0), 3, 0)

    async def work() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        return 5

    async def main() -> None:
        assert await asyncio.get_running_loop().create_task(Timed(work(), charge)) == 5
        assert charge.spent_s > 0
        asleep = asyncio.get_running_loop().create_task(Timed(asyncio.sleep(1_000), charge))
        await asyncio.sleep(0)
        asleep.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asleep

    run(main())


def test_an_address_with_a_quota() -> None:
    gate = Gate({QuotaEntity(ip="10.0.0.1"): {CONNECTION_CREATION_RATE: 1.0}})
    assert gate.gate.may_connect("10.0.0.2") is None
    # Three seconds' worth and the one that makes it owe something.
    assert [gate.gate.may_connect("::ffff:10.0.0.1") for _ in range(5)] == [True, True, True, True, False]
    gate.now_ms += 1_000
    allowed = 0
    for _ in range(100):
        allowed += bool(gate.gate.may_connect("10.0.0.1"))
        gate.now_ms += 100
    assert 9 <= allowed <= 11
    assert gate.metrics.throttled[CONNECTION_CREATION_RATE] > 50


def image_of(gateways: int, quotas: Mapping[QuotaEntity, Mapping[str, float]]) -> MetadataImage:
    records = []
    for n in range(gateways):
        gateway = metadata_pb2.GatewayRecord(gateway_id=f"g{n}", gateway_epoch=1)
        records.append(metadata_pb2.MetadataRecord(gateway=gateway))
    for entity, values in quotas.items():
        for key, value in values.items():
            record = metadata_pb2.QuotaRecord(
                user=entity.user, client_id=entity.client_id, key=key, value=value
            )
            records.append(metadata_pb2.MetadataRecord(quota=record))
    return MetadataImage().apply(records, 1)


def test_gateways_report_and_take_shares() -> None:
    gate, client = Gate({}), Client()
    gate.gate.metadata_changed(gate.image, image_of(4, {ALICE: {PRODUCER_BYTE_RATE: QUOTA}}))
    assert gate.produce(client, 750)[1] == 0, "a quarter of the quota"
    assert gate.produce(client, 250)[1] == 1_000
    report = gate.gate.report()
    assert report is not None
    (part,) = report.demands
    assert part.part == pytest.approx(0.2), "100 a second over the window, and it wants more"
    gate.gate.take_shares(pb.QuotaShares(shares=[pb.QuotaPart(bucket=part.bucket, part=1.0)]))
    assert gate.produce(client, 250)[1] == 500
    assert gate.gate.report() is None, "not due"


# At a real listener


def test_a_connection_is_not_read_while_its_client_is_throttled(run: Run) -> None:
    async def main() -> None:
        gate = QuotaGate(QuotaBook(), lambda: int(asyncio.get_running_loop().time() * 1000), KafkaMetrics())
        quotas = {QuotaEntity("ANONYMOUS"): {PRODUCER_BYTE_RATE: 100_000.0}}
        gate.metadata_changed(MetadataImage(), MetadataImage(security=SecurityImage(quotas=quotas)))

        def answer(connection: Connection, frame: bytearray) -> Response | Awaitable[Response]:
            header = parse_request_header(frame)
            if header.api_key != ApiKey.PRODUCE:
                return codec.respond(header, error_code=0)
            return [encode_produce_response(header, [ProduceResult("t", None, 0, 0, 5)])]

        def framed(frame: bytearray) -> bytes:
            return len(frame).to_bytes(4, "big") + frame

        async with (
            listening(answer, quotas=gate) as (listener, handler, endpoint, _),
            connected(endpoint) as (r, w),
        ):
            w.write(framed(produce(400_000)))
            _, body = await read_response(r)
            answer_bytes = b"\x00\x00\x00\x07" + body
            throttle_ms = decode_produce_response(answer_bytes, PRODUCE_VERSION).throttle_ms
            assert 0 < throttle_ms <= 1_000
            answered_s = asyncio.get_running_loop().time()
            (connection,) = listener.connections
            assert connection._muting is not None
            assert not connection.may_be_idle
            w.write(framed(heartbeat()))
            async with connected(endpoint) as (other_r, other_w):
                other_w.write(framed(heartbeat()))
                await read_response(other_r)
                assert len(handler.frames) == 2, "of the one who waits nothing was read meanwhile"
            await read_response(r)
            waited_ms = (asyncio.get_running_loop().time() - answered_s) * 1000
            assert waited_ms >= throttle_ms * 0.9
            assert connection._muting is None

    run(main())


def test_a_connection_that_ends_while_it_waits_leaves_nothing(run: Run) -> None:
    async def main() -> None:
        gate = QuotaGate(QuotaBook(), lambda: int(asyncio.get_running_loop().time() * 1000), KafkaMetrics())
        quotas = {QuotaEntity("ANONYMOUS"): {PRODUCER_BYTE_RATE: 1.0}}
        gate.metadata_changed(MetadataImage(), MetadataImage(security=SecurityImage(quotas=quotas)))

        def answer(_connection: Connection, _frame: bytearray) -> Response:
            return NO_RESPONSE

        async with listening(answer, quotas=gate) as (listener, handler, endpoint, _):
            async with connected(endpoint) as (_r, w):
                frame = produce(1_000)
                w.write(len(frame).to_bytes(4, "big") + frame)
                await eventually(lambda: handler.frames, "the request")
                (connection,) = listener.connections
                assert connection._muting is not None
            connection.abort("the test is over")
            await eventually(lambda: not listener.connections, "the end")

    run(main())


def test_connections_of_an_address_beyond_its_quota_are_refused(run: Run) -> None:
    async def main() -> None:
        gate = QuotaGate(QuotaBook(), lambda: 1_000, KafkaMetrics())
        quotas = {QuotaEntity(ip=DEFAULT): {CONNECTION_CREATION_RATE: 1.0}}
        gate.metadata_changed(MetadataImage(), MetadataImage(security=SecurityImage(quotas=quotas)))

        def answer(_connection: Connection, frame: bytearray) -> Response:
            return [bytes(frame[4:8])]

        async with listening(answer, quotas=gate) as (_, handler, endpoint, lifecycle):
            for n in range(6):
                async with connected(endpoint) as (r, w):
                    frame = heartbeat()
                    w.write(len(frame).to_bytes(4, "big") + frame)
                    try:
                        await read_response(r)
                    except (ConnectionError, asyncio.IncompleteReadError):
                        assert n >= 4
            assert len(handler.frames) == 4
            assert metric(lifecycle, "penstock_kafka_connections_refused_total") == 6 - len(handler.frames)

    run(main())
