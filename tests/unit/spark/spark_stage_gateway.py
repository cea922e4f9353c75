"""The in-memory gateway with stages and units: a coordinator by decision 0073, and leaders that know sequences."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import grpc

from penstock_proto.v1 import sinks_pb2
from unit.spark.spark_batches import HEADER, decode_plainly
from unit.spark.spark_sink_gateway import SinkGateway

TRANSACTIONAL = 0x10
VERDICTS: dict[str, Any] = {"write": 1, "done": 2, "stale": 3, "foreign": 4, "lost": 5}


@dataclass
class Stage:
    """An id's present transaction. `state`: open, committed, aborted."""

    producer_id: int
    epoch: int
    unit: Any = None
    state: str = "open"
    sequences: dict[tuple[str, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    """By partition, of its batches: first sequence, the one behind the last, base offset."""
    ends: dict[int, str] = field(default_factory=dict)
    """How transactions of its producer ended, by their epoch."""


class StageGateway(SinkGateway):
    """`stages` by transactional id, `last` by sink. `stage_faults` are called with (context, call) before each call
    about stages, and may abort it or give a Kafka error."""

    def __init__(self) -> None:
        super().__init__()
        self.stages: dict[str, Stage] = {}
        self.last: dict[str, Any] = {}
        self.rows_said: list[Any] = []
        self.once: list[bool] = []
        self.repeats = 0
        self.stage_fault: Any = None
        self.after_commit: Any = None
        """Called with the context behind a decision: it may abort the answer."""
        self.turn = threading.RLock()

    def committed(self, topic: str) -> list[dict[str, Any]]:
        """Rows that a reader of committed records sees."""
        kept = {
            (stage.producer_id, epoch)
            for stage in self.stages.values()
            for epoch, state in stage.ends.items()
            if state == "committed"
        }
        found = []
        for row, batch in self._rows_and_batches(topic):
            header = HEADER.unpack_from(batch)
            if not header[5] & TRANSACTIONAL or (header[9], header[10]) in kept:
                found.append(row)
        return found

    def _rows_and_batches(self, topic: str) -> Any:
        for partition, log in enumerate(self.topics[topic].logs):
            for _, _, batch in log.batches:
                for row in decode_plainly(batch, topic, partition, 0, 1 << 62):
                    yield row, batch

    def open_stages(self) -> list[str]:
        return [name for name, stage in self.stages.items() if stage.state == "open"]

    # -- leaders ----------------------------------------------------------------------------

    def _refusal(self, context: Any, request: Any, records: bytes) -> tuple[int, str] | None:
        refused = super()._refusal(context, request, records)
        if refused is not None or not request.transactional_id:
            return refused
        header = HEADER.unpack_from(records)
        assert header[5] & TRANSACTIONAL
        with self.turn:
            stage = self.stages.get(request.transactional_id)
            if stage is None or (stage.producer_id, stage.epoch) != (header[9], header[10]):
                return 47, f"{request.topic}-{request.partition}: INVALID_PRODUCER_EPOCH"
            if stage.state != "open":
                return 48, f"{request.topic}-{request.partition}: INVALID_TXN_STATE"
            known = stage.sequences.get((request.topic, request.partition), [])
            if known and any(first == header[11] for first, _, _ in known[-5:]):
                return None
            if header[11] != (known[-1][1] if known else 0):
                return 45, f"{request.topic}-{request.partition}: OUT_OF_ORDER_SEQUENCE_NUMBER"
        return None

    def _append(self, request: Any, records: bytes) -> int:
        if not request.transactional_id:
            return super()._append(request, records)
        header = HEADER.unpack_from(records)
        with self.turn:
            stage = self.stages[request.transactional_id]
            known = stage.sequences.setdefault((request.topic, request.partition), [])
            for first, _, base in known[-5:]:
                if first == header[11]:
                    self.repeats += 1
                    return base
            base = super()._append(request, records)
            known.append((header[11], header[11] + header[12], base))
            return base

    # -- the coordinator --------------------------------------------------------------------

    def _trouble(self, context: Any, request: Any, answer: Any) -> bool:
        if self.stage_fault is None:
            return False
        found = self.stage_fault(context, request)
        if found is not None:
            answer.error.code, answer.error.message = found
        return found is not None

    def _judge(self, unit: Any, takeover: bool, answer: Any) -> bool:
        """Whether it may be written."""
        last = self.last.get(unit.sink)
        if last is None:
            return True
        answer.last.CopyFrom(last)
        if last.query != unit.query:
            answer.verdict = VERDICTS["write" if takeover else "foreign"]
        elif unit.epoch <= last.epoch:
            answer.verdict = VERDICTS["done" if unit.epoch == last.epoch else "stale"]
        return answer.verdict in (0, VERDICTS["write"])

    def BeginStage(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = sinks_pb2.BeginStageResponse()
        with self.turn:
            if self._trouble(context, request, answer) or not self._judge(
                request.unit, request.takeover, answer
            ):
                return answer
            name = f"{request.unit.sink}-{request.partition}-{request.attempt}-0"
            before = self.stages.get(name)
            if before is None:
                stage = self.stages[name] = Stage(1000 + len(self.stages), 0)
            else:
                end(before, "aborted")
                stage = self.stages[name] = Stage(before.producer_id, before.epoch, ends=before.ends)
            stage.unit = request.unit
            answer.verdict = VERDICTS["write"]
            answer.triple.transactional_id = name
            answer.triple.producer_id, answer.triple.producer_epoch = stage.producer_id, stage.epoch
            return answer

    def _is_open(self, triple: Any) -> bool:
        stage = self.stages.get(triple.transactional_id)
        said = (triple.producer_id, triple.producer_epoch)
        return stage is not None and stage.state == "open" and (stage.producer_id, stage.epoch) == said

    def CommitUnit(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = sinks_pb2.CommitUnitResponse()
        with self.turn:
            if self._trouble(context, request, answer) or not self._judge(
                request.unit, request.takeover, answer
            ):
                return answer
            for triple in request.triples:
                if not self._is_open(triple):
                    answer.verdict = VERDICTS["lost"]
                    answer.lost.CopyFrom(triple)
                    return answer
            for triple in request.triples:
                end(self.stages[triple.transactional_id], "committed")
            for stage in self.stages.values():
                if stage.state == "open" and stage.unit.sink == request.unit.sink:
                    end(stage, "aborted")
            self.last[request.unit.sink] = request.unit
            self.rows_said += request.rows
            self.once.append(request.once)
            answer.verdict = VERDICTS["done"]
            answer.last.CopyFrom(request.unit)
            if self.after_commit is not None:
                self.after_commit(context)
            return answer

    def AbortStage(self, request: Any, context: Any) -> Any:  # noqa: N802
        answer = sinks_pb2.AbortStageResponse()
        with self.turn:
            if not self._trouble(context, request, answer) and self._is_open(request.triple):
                end(self.stages[request.triple.transactional_id], "aborted")
        return answer

    def DescribeSink(self, request: Any, context: Any) -> Any:  # noqa: N802
        return sinks_pb2.DescribeSinkResponse(sink=self._state(request.sink))

    def ListSinks(self, request: Any, context: Any) -> Any:  # noqa: N802
        names = sorted({*self.last, *(stage.unit.sink for stage in self.stages.values())})
        return sinks_pb2.ListSinksResponse(sinks=[state for name in names if (state := self._state(name))])

    def _state(self, sink: str) -> Any:
        """None when nothing is known of it."""
        state = sinks_pb2.SinkState(sink=sink)
        if sink in self.last:
            state.last.CopyFrom(self.last[sink])
        for name, stage in self.stages.items():
            if stage.unit.sink == sink and stage.state == "open":
                found = state.open.add(unit=stage.unit, started_at_ms=-1)
                found.triple.transactional_id, found.triple.producer_id = name, stage.producer_id
                found.triple.producer_epoch = stage.epoch
        return state if state.HasField("last") or state.open else None

    def time_out(self) -> None:
        with self.turn:
            for stage in self.stages.values():
                if stage.state == "open":
                    end(stage, "aborted")


def end(stage: Stage, state: str) -> None:
    if stage.state == "open":
        stage.ends[stage.epoch] = state
        stage.state = state
        stage.epoch += 1


def unimplemented(context: Any, _: Any) -> None:
    context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
