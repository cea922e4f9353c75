"""After the loss of a gateway librdkafka is told once, on each connection, to forget where coordinators were."""

from __future__ import annotations

from typing import Any, cast

from penstock_core.metadata.image import MetadataImage
from penstock_frontend.cluster.find_coordinator import GROUP, TRANSACTION, LostGateways


class Client:
    """As much of a connection as is looked at."""

    def __init__(self, software: str) -> None:
        self.state: dict[str, Any] = {"client_software": software}


class Image:
    """As much of an image."""

    def __init__(self, *gateways: str) -> None:
        self.gateways = dict.fromkeys(gateways)


def change(lost: LostGateways, old: Image, new: Image) -> None:
    lost.metadata_changed(cast(MetadataImage, old), cast(MetadataImage, new))


def test_librdkafka_forgets_once_on_each_connection_after_each_loss() -> None:
    now_ms = 1_000
    lost = LostGateways(lambda: now_ms)
    client, other, java = (
        cast(Any, Client("confluent-kafka-python 2.16.1-rdkafka-2.16.1")),
        cast(Any, Client("librdkafka 2.0.2")),
        cast(Any, Client("apache-kafka-java 4.3.1")),
    )
    change(lost, Image(), Image("a", "b"))
    assert not lost.has_to_forget(client, GROUP)
    change(lost, Image("a", "b"), Image("a"))
    assert [lost.has_to_forget(each, GROUP) for each in (client, client, java, other)] == [
        True,
        False,
        False,
        True,
    ]
    change(lost, Image("a"), Image("a", "b"))
    assert not lost.has_to_forget(client, GROUP)
    change(lost, Image("a", "b"), Image("b"))
    assert lost.has_to_forget(client, GROUP)
    now_ms += 300_001
    assert not lost.has_to_forget(cast(Any, Client("librdkafka 2.0.2")), GROUP)


def test_a_transactional_producer_is_told_at_every_other_question() -> None:
    """It takes the address from what it knew of the node, which the answer mends too late (rd_kafka_txn_coord_set)."""
    lost = LostGateways(lambda: 1_000)
    client = cast(Any, Client("librdkafka 2.0.2"))
    change(lost, Image("a", "b"), Image("a"))
    assert [lost.has_to_forget(client, TRANSACTION) for _ in range(5)] == [True, False, True, False, True]
    assert [lost.has_to_forget(client, GROUP) for _ in range(3)] == [True, False, False]
