"""Frames at the gate that charges clients for their quotas: it reads them before anybody else does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fuzz.target import Target, expect
from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.security import SecurityImage
from penstock_core.security.principal import ANONYMOUS
from penstock_core.security.quota_book import Account, QuotaBook
from penstock_core.security.quota_entities import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_kafka.wire.apis import SUPPORTED, ApiKey, is_supported
from penstock_kafka.wire.fetch import FetchRequest, decode_fetch, decode_fetch_response, encode_fetch_request
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.primitives import Malformed

LIMIT: Final = 1_000.0
_QUOTAS: Final = {
    QuotaEntity(ANONYMOUS.name): {
        PRODUCER_BYTE_RATE: LIMIT,
        CONSUMER_BYTE_RATE: LIMIT,
        REQUEST_PERCENTAGE: LIMIT,
    }
}


class _Client:
    principal = ANONYMOUS

    def __init__(self) -> None:
        self.quota_account: tuple[bytes, object, Account] | None = None

    def mute(self, throttle_ms: int) -> None:
        expect(throttle_ms > 0, "nobody waits for no time")


def _gate() -> QuotaGate:
    gate = QuotaGate(QuotaBook(), lambda: 0, KafkaMetrics())
    gate.metadata_changed(MetadataImage(), MetadataImage(security=SecurityImage(quotas=_QUOTAS)))
    return gate


def _arrives(data: bytes) -> None:
    """What the gate takes or changes is read as before by whoever answers it, but for what a Fetch may bring."""
    frame, client, gate = bytearray(data), _Client(), _gate()
    charges = [gate.arrived(client, frame) for _ in range(2)]  # type: ignore[arg-type]
    header = parse_request_header(data)
    if header.api_key != ApiKey.FETCH or not is_supported(header.api_key, header.api_version):
        expect(frame == data, "nothing but a Fetch is changed")
        return
    for charge in charges:
        if charge is not None and charge.answer is not None:
            expect(
                not decode_fetch_response(b"".join(charge.answer), header.api_version).results, "it is empty"
            )
    before, after = decode_fetch(data, header), decode_fetch(frame, header)
    expect(after.max_bytes <= 3 * LIMIT, "it asks for no more than is left")
    expect(after.min_bytes <= before.min_bytes, "it waits for no more")
    after.max_bytes, after.min_bytes = before.max_bytes, before.min_bytes
    expect(after == before, "nothing else of it is changed")


def _seeds() -> Iterator[bytes]:
    low, high = SUPPORTED[ApiKey.FETCH]
    for version in range(low, high + 1):
        yield encode_fetch_request(version, 7, "client", FetchRequest(500, 1, 50_000_000))
    for key in (ApiKey.PRODUCE, ApiKey.METADATA):
        yield request_header(key, SUPPORTED[key][1], 7, None) + bytes(50)


TARGETS: Final = [
    Target("kafka.quota_gate", _arrives, (Malformed,), _seeds, share=20, input_bytes_max=1024),
]
