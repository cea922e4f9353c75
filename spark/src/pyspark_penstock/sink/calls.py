"""Calls about stages and units to the gateways, whatever happens on the way: each may be repeated.

Any gateway takes them to the sink's coordinator. A gateway or a coordinator that is gone is followed by another one
within the time that a call may take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import grpc

from penstock_core.process.native_account import Metadata
from penstock_proto.v1 import common_pb2, gateway_pb2_grpc, sinks_pb2
from pyspark_penstock.errors import GatewayError, OptionError, PenstockError
from pyspark_penstock.gateway import (
    RETRIABLE_CODES,
    RETRIABLE_STATUS,
    Access,
    Backoff,
    GatewayClient,
    unreachable,
)
from pyspark_penstock.rights import needs
from pyspark_penstock.sink.producer import TRANSACTIONAL_ID_AUTHORIZATION_FAILED
from pyspark_penstock.sink.protocol import (
    AbortStage,
    BeginStage,
    Begun,
    CommitUnit,
    Entry,
    Outcome,
    Triple,
    Unit,
    Verdict,
)

BEGIN_BUDGET_MS = 60_000
COMMIT_BUDGET_MS = 120_000
ABORT_BUDGET_MS = 10_000
DESCRIBE_BUDGET_MS = 10_000
"""How long a call is tried: coordinators are replaced within seconds."""
CALL_TIMEOUT_MS = 30_000
"""One try: a begin waits until what the id's last holder left is ended."""
_BACKOFF_FIRST_MS = 20

# Kafka's error codes: beside those of a reader COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
# NOT_COORDINATOR, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, CONCURRENT_TRANSACTIONS,
# THROTTLING_QUOTA_EXCEEDED.
_PASSING = RETRIABLE_CODES | {14, 15, 16, 19, 20, 51, 89}
UNSUPPORTED_VERSION = 35
INVALID_TRANSACTION_TIMEOUT = 50

_VERDICTS = {
    sinks_pb2.UNIT_VERDICT_WRITE: Verdict.WRITE,
    sinks_pb2.UNIT_VERDICT_DONE: Verdict.DONE,
    sinks_pb2.UNIT_VERDICT_STALE: Verdict.STALE,
    sinks_pb2.UNIT_VERDICT_FOREIGN: Verdict.FOREIGN,
    sinks_pb2.UNIT_VERDICT_LOST: Verdict.LOST,
}

_known: dict[tuple[str, ...], tuple[str, ...]] = {}
"""Gateways that this process has learned, by those that were configured."""


def others(gateways: Sequence[str], credentials_file: str = "") -> tuple[str, ...]:
    """Gateways that the cluster names beside these, for the driver to hand to its tasks: what it began with may be gone
    when they come. None when nobody answers, which whoever writes finds out."""
    known = tuple(gateways)
    if known not in _known:
        client = GatewayClient(known, credentials_file=credentials_file, retries_max=0, retry_budget_ms=0)
        with suppress(PenstockError):
            client.describe([])
            _known[known] = client.others()
    return _known.get(known, ())


class _Answer(Protocol):
    @property
    def error(self) -> common_pb2.Error: ...


A = TypeVar("A", bound=_Answer)


class SinkCalls:
    """One task's or driver's. Not thread-safe."""

    def __init__(self, gateways: Sequence[str], credentials_file: str = "") -> None:
        self._gateways = tuple(gateways)
        self._file = credentials_file
        self._access = Access(credentials_file)
        self._at = 0

    def learn(self) -> None:
        """Asks which other gateways there are, once in a process: the driver's call must not depend on a single one."""
        if self._gateways not in _known:
            client = GatewayClient(self._gateways, credentials_file=self._file)
            client.describe([])
            _known[self._gateways] = client.others()

    def begin(self, call: BeginStage) -> Begun:
        """Raises PenstockError."""
        request = sinks_pb2.BeginStageRequest(
            unit=_unit(call.unit),
            partition=call.partition,
            attempt=call.attempt,
            timeout_ms=call.timeout_ms,
            takeover=call.takeover,
        )
        answer = self._call(
            lambda gateway, options: gateway.BeginStage(request, **options), call.unit.sink, BEGIN_BUDGET_MS
        )
        verdict = _verdict(answer.verdict)
        triple = _triple(answer.triple) if verdict is Verdict.WRITE else None
        return Begun(verdict, triple, _last(answer))

    def commit(self, call: CommitUnit) -> Outcome:
        """Raises PenstockError; then nobody knows whether it is decided."""
        request = sinks_pb2.CommitUnitRequest(
            unit=_unit(call.unit, call.input),
            triples=[_said(triple) for triple in call.triples],
            takeover=call.takeover,
            rows=[
                sinks_pb2.UnitRows(topic=topic, partition=partition, rows=count)
                for topic, partition, count in call.rows
            ],
            once=call.once,
        )
        answer = self._call(
            lambda gateway, options: gateway.CommitUnit(request, **options), call.unit.sink, COMMIT_BUDGET_MS
        )
        lost = _triple(answer.lost) if answer.HasField("lost") else None
        return Outcome(_verdict(answer.verdict), _last(answer), lost)

    def abort(self, call: AbortStage, budget_ms: int = ABORT_BUDGET_MS) -> None:
        """Raises PenstockError."""
        request = sinks_pb2.AbortStageRequest(sink=call.sink, triple=_said(call.triple))
        self._call(lambda gateway, options: gateway.AbortStage(request, **options), call.sink, budget_ms)

    def last(self, sink: str) -> Entry | None:
        """The last unit that a sink has decided. Raises PenstockError."""
        request = sinks_pb2.DescribeSinkRequest(sink=sink)
        answer = self._call(
            lambda gateway, options: gateway.DescribeSink(request, **options), sink, DESCRIBE_BUDGET_MS
        )
        said = answer.sink
        return _entry(said.last) if said.HasField("last") else None

    def _call(
        self, call: Callable[[gateway_pb2_grpc.GatewayStub, dict[str, Any]], A], sink: str, budget_ms: int
    ) -> A:
        """Tries the gateways in turn."""
        deadline = time.monotonic() + budget_ms / 1000
        addresses = (*self._gateways, *_known.get(self._gateways, ()))
        backoff = Backoff(_BACKOFF_FIRST_MS)
        while True:
            olds, reason = 0, ""
            for _ in addresses:
                address = addresses[self._at % len(addresses)]
                try:
                    gateway, metadata = self._access.open(address)
                    answer = call(gateway, _options(metadata, deadline))
                    self._access.answered()
                    if answer.error.code not in _PASSING:
                        self._check(answer.error, sink)
                        return answer
                    reason = f"{address}: {answer.error.message or f'Kafka error {answer.error.code}'}"
                except grpc.RpcError as error:
                    status, details = error.code(), (error.details() or "no details").splitlines()[0]
                    reason = f"{address}: {status.name}, {details}"
                    if status is grpc.StatusCode.UNIMPLEMENTED:
                        olds += 1
                    elif status not in RETRIABLE_STATUS and not self._access.may_ask_again(status):
                        raise GatewayError(reason) from None
                self._at += 1
            if olds == len(addresses):
                raise GatewayError(
                    f"gateways of an older build, which don't know of exactly-once writing, answer at "
                    f'{", ".join(addresses)}; upgrade them, or set option("delivery", "at-least-once")'
                )
            if time.monotonic() >= deadline:
                raise unreachable(addresses, f"sink {sink}: {reason}", self._file)
            backoff.wait()

    def _check(self, error: common_pb2.Error, sink: str) -> None:
        """Raises PenstockError for what does not pass."""
        if not error.code:
            return
        text = error.message or f"Kafka error {error.code}"
        if error.code == UNSUPPORTED_VERSION:
            raise GatewayError(
                f"the cluster can't write exactly once ({text}); raise its feature with penstock feature set "
                'transaction.version=2, or set option("delivery", "at-least-once")'
            )
        if error.code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise GatewayError(
                f"not allowed to write as sink {sink} ({text}); "
                + needs(self._file, "Write on the transactional ids that begin with this name")
            )
        if error.code == INVALID_TRANSACTION_TIMEOUT:
            raise OptionError(
                f"option stagingTimeoutMs is not taken ({text}); give less, or raise the cluster's "
                "transaction.max.timeout.ms"
            )
        raise PenstockError(f"sink {sink}: {text}")


def _options(metadata: Metadata, deadline: float) -> dict[str, Any]:
    """Of one try. The last one may take as long as any."""
    left_s = max(deadline - time.monotonic(), 1.0)
    return {"metadata": metadata, "timeout": min(left_s, CALL_TIMEOUT_MS / 1000)}


def _unit(unit: Unit, made_of: bytes = b"") -> sinks_pb2.SinkUnit:
    return sinks_pb2.SinkUnit(sink=unit.sink, query=unit.query, epoch=unit.epoch, input=made_of)


def _said(triple: Triple) -> sinks_pb2.StageTriple:
    return sinks_pb2.StageTriple(
        transactional_id=triple.transactional_id,
        producer_id=triple.producer_id,
        producer_epoch=triple.producer_epoch,
    )


def _triple(said: sinks_pb2.StageTriple) -> Triple:
    return Triple(said.transactional_id, said.producer_id, said.producer_epoch)


def _last(answer: sinks_pb2.BeginStageResponse | sinks_pb2.CommitUnitResponse) -> Entry | None:
    return _entry(answer.last) if answer.HasField("last") else None


def _entry(said: sinks_pb2.SinkUnit) -> Entry:
    return Entry(said.query, said.epoch, said.input)


def _verdict(said: int) -> Verdict:
    """Raises GatewayError for one that this build doesn't know."""
    if said not in _VERDICTS:
        raise GatewayError(f"the gateway's answer is broken: verdict {said} of a unit")
    return _VERDICTS[said]  # type: ignore[index]
