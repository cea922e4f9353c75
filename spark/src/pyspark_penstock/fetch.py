"""Reads one offset range from gateways on an executor, whatever happens on the way.

FetchRange streams raw batches. A broken stream is opened again, on the next gateway, at
the offset behind the last batch received, inside the same task: Spark would otherwise
run the whole task anew. The effort is bounded by `kafkaConsumer.pollTimeoutMs` of silence:
neither a long range nor a slow query ends a stream.

With a `DirectRoute` the partition's leader is asked itself. Only what goes as it should is settled there: a leader that
moved is looked for again, at the same offset, and for whatever else comes up (offsets that are gone, a topic that is
another one, a denied right, a node out of reach) the rest of the range is read through gateways, which tell it in
their words and by one set of rules.

Data loss (rules of the Kafka connector, with its known faults mended): records are lost
when the log now starts above the offset wanted, or ends below it, or the topic is
another one than was planned for. A gap inside the log is none: compaction and markers
make them. With failOnDataLoss=false the surviving part is read, the lost range is
logged, and reading never goes back. It always ends: the range is pinned in a checkpoint,
so a task that waits for offsets beyond the end of a log that was cut would wait again
after each restart. Such a wait is looked into after a while of silence (`silence`).
What was written behind a cut, in a later leader epoch than the one that told the range's
end, is none of the range: the driver sees the cut at its next look, and all that is new
is read then.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Generator, Iterator
from typing import Any

import grpc

from penstock_proto.fast.pieces import Assembly
from penstock_proto.fast.primitives import Buffer, MalformedMessage
from penstock_proto.v1 import data_pb2
from pyspark_penstock.answers import RangeAnswer, read_answer
from pyspark_penstock.decode import Decoder
from pyspark_penstock.decode.batches import UNPACKED_BYTES_MAX, before_epoch
from pyspark_penstock.direct.batches import whole, without_aborted
from pyspark_penstock.direct.frames import FetchAnswer
from pyspark_penstock.direct.route import DirectRoute, NodeLost, NoDirectWay
from pyspark_penstock.errors import CorruptRecordsError, DataLossError, GatewayError
from pyspark_penstock.gateway import (
    INCONSISTENT_TOPIC_ID,
    OFFSET_OUT_OF_RANGE,
    RETRIABLE_CODES,
    RETRIABLE_STATUS,
    RETRY_BUDGET_MS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    Access,
    Backoff,
    GatewayClient,
    Query,
    unreachable,
)
from pyspark_penstock.options import EARLIEST, LATEST
from pyspark_penstock.rights import needs
from pyspark_penstock.silence import Silence
from pyspark_penstock.tiling import OffsetRange

_log = logging.getLogger("pyspark_penstock")

MISSING_GRACE_MS = 5_000
"""How long "no such topic" or "no such offset" must last to be believed: a gateway or a new leader
that has just come up may be behind for a moment."""
_BACKOFF_FIRST_MS = 50
_DIRECT_FAILURES_MAX = 3
"""Without a record between them, where gateways are another way."""
_DIRECT_PATIENCE_MS = 30_000
"""How long a node that this process has never reached is tried, where there is no other way."""
_STATUS_TO_CODE = {
    grpc.StatusCode.NOT_FOUND: UNKNOWN_TOPIC_OR_PARTITION,
    grpc.StatusCode.OUT_OF_RANGE: OFFSET_OUT_OF_RANGE,
}


class RangeReader:
    """One pass over one range. Made, used up and dropped inside a task."""

    def __init__(
        self,
        wanted: OffsetRange,
        gateways: tuple[str, ...],
        decoder: Decoder,
        *,
        fail_on_data_loss: bool,
        chunk_bytes: int,
        poll_timeout_ms: int,
        missing_grace_ms: int = MISSING_GRACE_MS,
        credentials_file: str = "",
        read_committed: bool = False,
        direct: DirectRoute | None = None,
    ) -> None:
        """`direct`: the way to ask the leader itself, as long as it goes."""
        self._direct = direct
        self._read_committed = read_committed
        self._credentials_file = credentials_file
        self._access = Access(credentials_file)
        self._range = wanted
        self._gateways = gateways
        self._decoder = decoder
        self._fail_on_data_loss = fail_on_data_loss
        self._chunk_bytes = chunk_bytes
        self._poll_timeout_ms = poll_timeout_ms
        self._missing_grace_ms = missing_grace_ms
        self._where = f"topic {wanted.topic} partition {wanted.partition}"
        self._at = 0
        self._backoff = Backoff(_BACKOFF_FIRST_MS)
        self._progress_s = time.monotonic()
        self._missing_since_s: float | None = None
        self._missing_code = 0
        """What has been said since then: a doubt is an unbroken one, of one kind."""
        self._short: tuple[int, float] | None = None
        """What was received when the log was first seen to end there, inside the range, and when that was."""
        self._ends_at: int | None = None
        """Where it ends, once that is believed."""
        self._received = wanted.start
        """Next offset to ask for."""
        self._decoded = wanted.start
        """Rows below this were handed on."""
        self._assembly = Assembly(UNPACKED_BYTES_MAX, may_restart=True)
        """Of a large batch; the gateway begins it anew when its leader is lost."""
        self._pending: list[Buffer] = []
        self._pending_bytes = 0

    def batches(self) -> Iterator[Any]:
        """Arrow batches of the range, in order. Raises PenstockError."""
        while self._received < self._range.end:
            if self._direct is not None:
                yield from self._read_directly(self._direct)
                continue
            try:
                done = yield from self._one_stream()
            except grpc.RpcError as error:
                done = self._after_status(error)
            # What came must go out before a loss moves the position on.
            yield from self._flush()
            if done:
                break

    # -- from the leader itself -------------------------------------------------------------

    def _read_directly(self, route: DirectRoute) -> Iterator[Any]:
        """Reads to the range's end, or until gateways have to take over (`_direct` is None then)."""
        try:
            while self._direct is not None and self._received < self._range.end:
                try:
                    answer = route.answer(self._received)
                except NoDirectWay as error:
                    self._no_way(route, error)
                except NodeLost as error:
                    self._ask_again(route, str(error))
                else:
                    yield from self._take_directly(route, answer)
        finally:
            route.leave()

    def _take_directly(self, route: DirectRoute, answer: FetchAnswer) -> Iterator[Any]:
        if answer.error in RETRIABLE_CODES:
            route.forget_leader()
            self._ask_again(route, f"{route.address}: Kafka error {answer.error}")
            return
        if answer.error:
            self._give_up_direct(f"{route.address}: Kafka error {answer.error}")
            return
        first = self._received
        try:
            run, next_offset = whole(answer.records)
        except CorruptRecordsError as error:
            raise CorruptRecordsError(f"{self._where}, offset {first}: {error}") from None
        if next_offset <= first:
            self._nothing_came(answer)
            return
        if self._written_anew(run, route.leader_epoch) is not None:
            self._give_up_direct("the log was cut and written anew")
            return
        self._check_start(run, answer.log_start_offset)
        self._received = next_offset
        self._heard()
        self._backoff.reset()
        route.failures = 0
        if next_offset < self._range.end:
            route.ahead(next_offset, len(run), next_offset - first)
        if self._read_committed:
            run = without_aborted(run, answer.aborted)
        if len(run):
            yield from self._decoder.decode(run, first, self._range.end)
        self._decoded = self._received
        self._progress_s = time.monotonic()

    def _nothing_came(self, answer: FetchAnswer) -> None:
        """Waits at a high watermark that lags. A gap, a log that ends too early: the gateways' rules say which."""
        readable_end = answer.last_stable_offset if self._read_committed else answer.high_watermark
        waited_ms = (time.monotonic() - self._progress_s) * 1000
        if len(answer.records) or readable_end > self._received:
            self._give_up_direct("nothing is stored at that offset")
        elif waited_ms >= min(self._missing_grace_ms, self._poll_timeout_ms):
            self._give_up_direct(f"the log ends at {readable_end}")

    def _no_way(self, route: DirectRoute, error: NoDirectWay) -> None:
        if not route.must:
            self._give_up_direct(str(error))
            return
        silent_ms = (time.monotonic() - self._progress_s) * 1000
        patience_ms = self._poll_timeout_ms
        if not error.was_reached:
            patience_ms = min(patience_ms, _DIRECT_PATIENCE_MS)
        if not error.may_pass or silent_ms >= patience_ms:
            raise GatewayError(f"{self._where}, offset {self._received}: fetchMode=direct, but {error}")
        self._backoff.wait()

    def _ask_again(self, route: DirectRoute, reason: str) -> None:
        route.failures += 1
        if route.failures >= _DIRECT_FAILURES_MAX and not route.must:
            self._give_up_direct(reason)
            return
        self._retry(reason)

    def _give_up_direct(self, reason: str) -> None:
        """Gateways read the rest of the range."""
        _log.info("%s, offset %d: on through gateways: %s", self._where, self._received, reason)
        self._direct = None

    # -- through a gateway ------------------------------------------------------------------

    def _one_stream(self) -> Generator[Any, None, bool]:
        """Reads one stream to its end; returns True when the range is complete."""
        address = self._gateways[self._at % len(self._gateways)]
        self._assembly = Assembly(UNPACKED_BYTES_MAX, may_restart=True)
        fetch_range, metadata = self._access.open_range(address)
        call = fetch_range(
            data_pb2.FetchRangeRequest(
                topic=self._range.topic,
                topic_id=self._range.topic_id,
                partition=self._range.partition,
                from_offset=self._received,
                to_offset=self._range.end,
                max_chunk_bytes=self._chunk_bytes,
                takes_pieces=True,
                read_committed=self._read_committed,
            ),
            metadata=metadata,
        )
        self._short = self._ends_at = None
        look_ms = min(self._missing_grace_ms, self._poll_timeout_ms)
        silence = Silence(look_ms, lambda silent_ms: self._look_after(call, silent_ms))
        try:
            for data in silence.over(call):
                self._access.answered()
                answer = self._read(data)
                if answer.error:
                    return self._after_error(answer.error, answer.message, address)
                yield from self._take(answer)
                if answer.done or self._received >= self._range.end:
                    return True
        finally:
            call.cancel()
        # Ended properly but said nothing of being complete: ask for the rest.
        self._retry(f"{address}: the stream ended early")
        return False

    def _read(self, data: bytes) -> RangeAnswer:
        try:
            return read_answer(data)
        except MalformedMessage as error:
            raise self._broken(str(error)) from None

    def _broken(self, what: str) -> GatewayError:
        return GatewayError(f"{self._where}: the gateway's answer is broken: {what}")

    def _take(self, response: RangeAnswer) -> Iterator[Any]:
        if self._read_committed and not response.read_committed:
            raise GatewayError(
                f"{self._where}: its storage node does not know isolation read_committed yet: upgrade the node"
            )
        records: Buffer = response.records
        if self._assembly.is_under_way and (records or (response.done and response.piece is None)):
            raise self._broken("the end of a batch did not come")
        if response.piece is not None:
            try:
                whole = self._assembly.add(response.piece)
            except MalformedMessage as error:
                raise self._broken(str(error)) from None
            if whole is None:
                self._progress_s = time.monotonic()
                return
            records = whole
        if records:
            self._check_start(records, response.log_start_offset)
            if response.next_offset <= self._received:
                raise GatewayError(
                    f"{self._where}: the gateway's answer goes back from offset {self._received} "
                    f"to {response.next_offset}"
                )
            next_offset = response.next_offset
            if (anew := self._written_anew(records, response.leader_epoch)) is not None:
                records, cut = anew
                self._lost(
                    max(cut, self._received), self._range.end, f"the log was cut at {cut} and written anew"
                )
                next_offset = self._range.end
            if len(records):
                self._pending.append(records)
                self._pending_bytes += len(records)
        else:
            next_offset = response.next_offset
        if next_offset > self._received:
            self._received = next_offset
            self._heard()
            self._backoff.reset()
        # Small answers are gathered: Arrow batches of a few rows cost more than their rows.
        if self._pending_bytes >= self._chunk_bytes // 2:
            yield from self._flush()
            # The time that Spark took over these rows is not the gateway's silence.
            self._progress_s = time.monotonic()

    def _written_anew(self, records: Buffer, leader_epoch: int) -> tuple[memoryview, int] | None:
        """What stands before a cut that came behind the plan, and where it is; None when there is none."""
        if not 0 <= self._range.epoch < leader_epoch:
            return None
        found = before_epoch(records, self._range.epoch)
        return None if found is None or found[1] >= self._range.end else found

    def _check_start(self, records: Buffer, log_start_offset: int) -> None:
        """Tells records that retention took since the last answer from a harmless gap."""
        if len(records) < 8:
            return
        (base_offset,) = struct.unpack_from(">q", records)
        if base_offset > self._received and log_start_offset > self._received:
            self._lost(
                self._received, min(base_offset, log_start_offset, self._range.end), "retention took them"
            )

    def _flush(self) -> Iterator[Any]:
        pending, first = self._pending, self._decoded
        self._pending, self._pending_bytes, self._decoded = [], 0, self._received
        if pending:
            run = pending[0] if len(pending) == 1 else b"".join(pending)
            yield from self._decoder.decode(run, first, self._range.end)

    # -- what went wrong --------------------------------------------------------------------

    def _look_after(self, call: Any, silent_ms: float) -> None:
        """Ends a stream that waits in vain. Runs beside it, in a thread of its own."""
        received = self._received
        bounds = self._bounds(retries=False)
        if self._received != received:
            return  # something came while the end was asked for: no silence, and no doubt
        if bounds is not None and received >= bounds[1] and bounds[1] < self._range.end:
            # It waits at the end of a log that ends too early. A new leader may only not know its high watermark yet.
            now_s = time.monotonic()
            if self._short is None or self._short[0] != received:
                self._short = received, now_s
            elif (now_s - self._short[1]) * 1000 >= self._missing_grace_ms:
                self._ends_at = bounds[1]
                call.cancel()
            return
        self._short = None
        if silent_ms >= self._poll_timeout_ms:
            call.cancel()

    def _after_status(self, error: grpc.RpcError) -> bool:
        if self._ends_at is not None and self._still_ends():
            self._lost(self._received, self._range.end, f"the log now ends at {self._ends_at}")
            return True
        status, details = error.code(), (error.details() or "no details").splitlines()[0]
        address = self._gateways[self._at % len(self._gateways)]
        code = _STATUS_TO_CODE.get(status)
        if code is not None:
            return self._after_error(code, details, address)
        if status not in RETRIABLE_STATUS and not self._access.may_ask_again(status):
            if status is grpc.StatusCode.PERMISSION_DENIED:
                details = f"{details}; {needs(self._credentials_file, 'Read')}"
            raise GatewayError(f"{self._where}: {address}: {status.name}, {details}")
        self._retry(f"{address}: {status.name}, {details}")
        return False

    def _still_ends(self) -> bool:
        """Whether the log's end, once it was believed and the stream ended, has not gone on: what came of it meanwhile
        was on its way, and is gone with the stream. Or it was received, and where the log ends now was seen once."""
        if self._short is None or self._short[0] != self._received:
            return False
        bounds = self._bounds()
        return bounds is not None and bounds[1] <= self._received

    def _after_error(self, code: int, message: str, address: str) -> bool:
        """Retries, skips what is lost, or raises; returns True when nothing is left to read."""
        if code == OFFSET_OUT_OF_RANGE:
            return self._out_of_range(message)
        if code in (UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID):
            # An id that is another one is proof; a topic that isn't there may be a stale gateway.
            if code == INCONSISTENT_TOPIC_ID or self._missing_for_long(UNKNOWN_TOPIC_OR_PARTITION):
                self._lost(self._received, self._range.end, f"the topic was deleted or made anew ({message})")
                return True
            self._retry(f"{address}: {message or code}")
            return False
        if code in RETRIABLE_CODES:
            # Who says so knows the topic, and a leader that comes after it is believed as little as the one before.
            self._missing_since_s = None
            self._retry(f"{address}: Kafka error {code}, {message}")
            return False
        raise GatewayError(f"{self._where}: {address}: Kafka error {code}, {message}")

    def _out_of_range(self, message: str) -> bool:
        bounds = self._bounds()
        if bounds is None:
            self._retry(message or "offset out of range")
            return False
        first, last = bounds
        if first > self._received:
            end = min(first, self._range.end)
            self._lost(self._received, end, f"the log now starts at {first}")
            self._received = end
            self._heard()
            return end >= self._range.end
        if last < self._received and self._missing_for_long(OFFSET_OUT_OF_RANGE):
            self._lost(self._received, self._range.end, f"the log now ends at {last}")
            return True
        self._retry(message or "offset out of range")
        return False

    def _bounds(self, *, retries: bool = True) -> tuple[int, int] | None:
        """First offset and end of the partition's log; None when they are not to be had."""
        client = GatewayClient(
            self._gateways,
            credentials_file=self._credentials_file,
            read_committed=self._read_committed,
            retries_max=3 if retries else 0,
            retry_budget_ms=RETRY_BUDGET_MS if retries else 0,
        )
        topic, partition = self._range.topic, self._range.partition
        try:
            first, last = client.list_offsets(
                [Query(topic, partition, EARLIEST), Query(topic, partition, LATEST)]
            )
        except GatewayError:
            return None
        if first.code or last.code:
            return None
        return first.offset, last.offset

    def _missing_for_long(self, code: int) -> bool:
        now = time.monotonic()
        if self._missing_since_s is None or self._missing_code != code:
            self._missing_since_s, self._missing_code = now, code
        return (now - self._missing_since_s) * 1000 >= self._missing_grace_ms

    def _lost(self, start: int, end: int, reason: str) -> None:
        text = f"{self._where}: offsets {start} to {end - 1} are gone: {reason}"
        if self._fail_on_data_loss:
            raise DataLossError(f'{text}; set option("failOnDataLoss", "false") to go on with what is left')
        _log.warning("%s; going on without them, as failOnDataLoss=false says", text)

    def _heard(self) -> None:
        self._progress_s = time.monotonic()
        self._missing_since_s = None

    def _retry(self, reason: str) -> None:
        """Moves on to the next gateway, after a wait when all were tried; raises when it took too long."""
        now_s = time.monotonic()
        silent_ms = (now_s - self._progress_s) * 1000
        doubts = (
            self._missing_since_s is not None
            and (now_s - self._missing_since_s) * 1000 < self._missing_grace_ms
        )
        # A loss that is not believed yet is waited for: with failOnDataLoss=false it is no error.
        if silent_ms >= self._poll_timeout_ms and not doubts:
            raise unreachable(
                self._gateways,
                f"{self._where}, offset {self._received}: no data for {silent_ms / 1000:.0f} s, which is more than "
                f"kafkaConsumer.pollTimeoutMs; last: {reason}",
                self._credentials_file,
            )
        self._at += 1
        if self._at % len(self._gateways) == 0 or len(self._gateways) == 1:
            self._backoff.wait()
