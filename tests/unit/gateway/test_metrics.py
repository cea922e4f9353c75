"""The parts of a relayed request's time, and the calls of the native API."""

from __future__ import annotations

import asyncio

from penstock_frontend.listener.answers import WatchedReply
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_gateway.metrics import GatewayMetrics
from penstock_gateway.relay.request import HopTimes
from penstock_kafka.wire.apis import ApiKey


def sums(metrics: GatewayMetrics, name: str) -> dict[tuple[str, ...], float]:
    return {
        tuple(v for k, v in sample.labels.items() if k != "le"): sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name == f"penstock_gateway_{name}_sum"
    }


def test_hops_of_a_request_add_up_to_its_time() -> None:
    now = [10.0]
    metrics = GatewayMetrics(KafkaMetrics(), lambda: 0, lambda: now[0])
    times = HopTimes()
    times.arrived_s, times.handed_s, times.back_s = 9.0, 9.125, 9.625
    metrics.observe_hops(ApiKey.PRODUCE, times)
    metrics.observe_hops(ApiKey.LIST_GROUPS, times)
    hops = {"queue": 0.125, "node": 0.5, "answer": 0.375}
    expected = {(api, hop): seconds for api in ("Produce", "other") for hop, seconds in hops.items()}
    assert sums(metrics, "hop_seconds") == expected


def test_what_was_answered_here_has_no_hops() -> None:
    metrics = GatewayMetrics(KafkaMetrics(), lambda: 0, lambda: 10.0)
    times = HopTimes()
    times.arrived_s = 9.0
    metrics.observe_hops(ApiKey.FETCH, times)
    times.handed_s = 9.5  # given up before an answer came
    metrics.observe_hops(ApiKey.FETCH, times)
    assert sums(metrics, "hop_seconds") == {}


def test_native_calls_are_timed_by_method() -> None:
    metrics = GatewayMetrics(KafkaMetrics(), lambda: 0, lambda: 10.0)
    metrics.observe_native("Describe", 0.25)
    metrics.observe_native("Describe", 0.5)
    assert sums(metrics, "native_seconds") == {("Describe",): 0.75}


async def test_a_watched_reply_is_a_future() -> None:
    reply = WatchedReply(loop=asyncio.get_running_loop())
    assert isinstance(reply, asyncio.Future) and reply.on_written is None
    reply.set_result(b"answer")
    assert await reply == b"answer"
