"""A connection of librdkafka on which offsets of a transaction were announced is closed when they do not come."""

from __future__ import annotations

from typing import Any, cast

import pytest

from conformance.build import request as build_request
from penstock_frontend.listener.connection import Connection
from penstock_frontend.offsets_to_come import WATCHED, OffsetsToCome
from penstock_kafka.wire import codec
from penstock_kafka.wire.apis import SUPPORTED, ApiKey
from penstock_kafka.wire.frames import parse_request_header, request_header
from penstock_kafka.wire.primitives import Malformed
from support.waiting import eventually

PYTHON = "confluent-kafka-python 2.16.1-rdkafka-2.16.0"
JAVA = "apache-kafka-java 3.9.0"
PATIENCE_S = 0.05


class Client:
    """As much of a connection as is looked at."""

    def __init__(self, software: str = PYTHON) -> None:
        self.state: dict[str, Any] = {"client_software": software}
        self.closing = False
        self.under_way = 0
        self.looked = 0

    @property
    def inflight_count(self) -> int:
        self.looked += 1
        return self.under_way

    def close(self, reason: str) -> None:
        assert "do not come" in reason
        assert not self.closing
        self.closing = True


def tell(offsets: OffsetsToCome, client: Client, key: ApiKey, name: str, version: int | None = None) -> None:
    """That a request of this transactional id came."""
    version = SUPPORTED[key][1] if version is None else version
    request = build_request(key.name.lower(), version, {"transactional_id": name, "group_id": "g"})
    frame = bytearray(request_header(key, version, 3, "c") + codec.encode_body(request))
    offsets.request_came(cast(Connection, client), parse_request_header(frame), frame)


async def closed(client: Client) -> None:
    await eventually(lambda: client.closing, "it is closed")


@pytest.mark.parametrize("version", range(SUPPORTED[ApiKey.ADD_OFFSETS_TO_TXN][1] + 1))
async def test_who_waits_for_nothing_is_woken(version: int) -> None:
    offsets, client = OffsetsToCome(lambda: PATIENCE_S), Client()
    tell(offsets, client, ApiKey.ADD_OFFSETS_TO_TXN, "x1", version)
    assert not client.closing
    await closed(client)


@pytest.mark.parametrize("key", [ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN])
async def test_offsets_that_come_and_the_end_of_a_transaction_leave_its_connection_alone(key: ApiKey) -> None:
    """By whatever connection: librdkafka has another to the group's coordinator."""
    offsets, client, later = OffsetsToCome(lambda: PATIENCE_S), Client(), Client()
    tell(offsets, client, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    tell(offsets, Client(), key, "x1")
    tell(offsets, later, ApiKey.ADD_OFFSETS_TO_TXN, "x2")
    tell(offsets, Client(), key, "x3")
    await closed(later)
    assert not client.closing
    assert not client.looked


async def test_a_request_under_way_is_waited_for() -> None:
    """AddOffsetsToTxn itself, as long as the coordinator takes."""
    offsets, client = OffsetsToCome(lambda: PATIENCE_S), Client()
    client.under_way = 1
    tell(offsets, client, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    await eventually(lambda: client.looked >= 2, "it was looked at twice")
    assert not client.closing
    client.under_way = 0
    await closed(client)


async def test_who_announces_again_begins_anew_and_a_closed_connection_is_forgotten() -> None:
    offsets, old, new, later = OffsetsToCome(lambda: PATIENCE_S), Client(), Client(), Client()
    old.closing = True
    tell(offsets, old, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    tell(offsets, later, ApiKey.ADD_OFFSETS_TO_TXN, "x2")
    await closed(later)
    assert not old.looked
    first = Client()
    tell(offsets, first, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    tell(offsets, new, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    await closed(new)
    assert not first.closing
    assert not first.looked


async def test_other_clients_are_left_alone() -> None:
    offsets, java, later = OffsetsToCome(lambda: PATIENCE_S), Client(JAVA), Client()
    tell(offsets, java, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    tell(offsets, later, ApiKey.ADD_OFFSETS_TO_TXN, "x2")
    await closed(later)
    assert not java.closing


async def test_only_so_many_are_waited_for() -> None:
    offsets, first, beyond = OffsetsToCome(lambda: PATIENCE_S, announced_max=1), Client(), Client()
    tell(offsets, first, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    tell(offsets, beyond, ApiKey.ADD_OFFSETS_TO_TXN, "x2")
    await closed(first)
    tell(offsets, later := Client(), ApiKey.ADD_OFFSETS_TO_TXN, "x3")
    await closed(later)
    assert not beyond.closing


@pytest.mark.parametrize("key", sorted(WATCHED))
async def test_what_cannot_be_read_is_said_so(key: ApiKey) -> None:
    offsets, client, later = OffsetsToCome(lambda: PATIENCE_S), Client(), Client()
    tell(offsets, later, ApiKey.ADD_OFFSETS_TO_TXN, "x1")
    frame = bytearray(request_header(key, SUPPORTED[key][1], 3, "c"))
    with pytest.raises(Malformed):
        offsets.request_came(cast(Connection, client), parse_request_header(frame), frame)
    await closed(later)
    assert not client.closing
