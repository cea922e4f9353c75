"""A small real gRPC server that answers as a gateway, over batches in memory.

It lets the source's tests make what a cluster rarely does: topics made anew, retention in
the middle of a read, streams that break, a high watermark that falls back for a moment.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc

from penstock_proto.v1 import common_pb2, data_pb2, gateway_pb2, gateway_pb2_grpc
from support.partial_gateway import PartialGateway
from unit.spark.spark_batches import Rec, encode_batch


@dataclass
class Log:
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """(first offset, last offset, bytes)"""
    start: int = 0
    end: int = 0
    times: list[tuple[int, int]] = field(default_factory=list)
    """(timestamp, offset), ascending"""
    epoch: int = 0
    """Of the leader."""


@dataclass
class Topic:
    topic_id: bytes
    logs: list[Log]


def epoch_of(batch: bytes) -> int:
    """The leader epoch in a batch's header."""
    return int.from_bytes(batch[12:16], "big", signed=True)


TOPIC_ALREADY_EXISTS = 36


class MemoryGateway(PartialGateway):
    """`topics` is the cluster; several servers may share one by `port` after `start_another`."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.changed = threading.Condition()
        self.calls: list[str] = []
        self.waits_ms: list[int] = []
        """How long each ListOffsets was to wait for news at most."""
        self.holds = threading.Event()
        """Set while a ListOffsets waits."""
        self.fault: Callable[[Any, int], None] | None = None
        """Called with (context, chunks sent so far) before each chunk of FetchRange."""
        self.instead: Callable[[], tuple[int, str] | None] = lambda: None
        """A Kafka error in the place of a FetchRange's records."""
        self.behind = 0
        """So many answers of Describe are those of a gateway whose metadata are from before any topic."""
        self.after_list: Callable[[], None] = lambda: None
        """Called behind the answer of each ListOffsets."""
        self.commits: list[Any] = []
        """Requests of CommitGroup."""
        self.group: dict[tuple[str, int], int] = {}
        """What every group has committed."""
        self.knows_sizes = False
        """SizeRanges is known."""
        self.knows_epochs = False
        """EpochEnds is known."""
        self.makes_topics = True
        """CreateTopic is known."""
        self.no_topic: tuple[int, str] | None = None
        """What CreateTopic says; TOPIC_ALREADY_EXISTS where another one has made it in between."""
        self.is_old = False
        """It does not know of readers of committed records."""
        self.latest_shift = 0
        """Added to every latest offset: a new leader that doesn't know its high watermark yet."""
        self.mute_describe: set[str] = set()
        self.nodes: list[gateway_pb2.DescribedNode] = []
        """What Describe says of them; node 1 leads every partition."""
        self._servers: list[grpc.Server] = []
        self.addresses: list[str] = []

    # -- the cluster ----------------------------------------------------------------------------

    def start(self) -> str:
        server = grpc.server(
            futures.ThreadPoolExecutor(16),
            options=[("grpc.so_reuseport", 0), ("grpc.http2.max_ping_strikes", 0)],
        )
        gateway_pb2_grpc.add_GatewayServicer_to_server(self, server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        self._servers.append(server)
        self.addresses.append(address)
        return address

    def stop(self) -> None:
        for server in self._servers:
            assert server.stop(None).wait(30), "a call did not end"

    def stop_one(self, index: int) -> None:
        """That gateway is gone; Describe still names it for a while."""
        assert self._servers[index].stop(None).wait(30), "a call did not end"

    def create(self, name: str, partitions: int = 1) -> None:
        self.topics[name] = Topic(uuid.uuid4().bytes, [Log() for _ in range(partitions)])

    def append(
        self,
        name: str,
        partition: int,
        values: list[bytes],
        *,
        size: int = 100,
        codec: str = "none",
        timestamp_ms: int | None = None,
        keys: bool = True,
    ) -> None:
        """Adds records in batches of `size`; a record's key is its offset."""
        now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        with self.changed:
            log = self.topics[name].logs[partition]
            for at in range(0, len(values), size):
                recs = [
                    Rec(log.end + i, now, b"%d" % (log.end + i) if keys else None, value)
                    for i, value in enumerate(values[at : at + size])
                ]
                log.batches.append(
                    (recs[0].offset, recs[-1].offset, encode_batch(recs, codec=codec, epoch=log.epoch))
                )
                log.times.append((now, log.end))
                log.end += len(recs)
            self.changed.notify_all()

    def trim(self, name: str, partition: int, start: int) -> None:
        """Retention: the log starts at `start` now; whole batches below it go."""
        log = self.topics[name].logs[partition]
        log.start = start
        log.batches = [item for item in log.batches if item[1] >= start]

    def cut(self, name: str, partition: int, end: int) -> None:
        """An unclean election: the new leader's log ends at `end`, which is the end of a batch."""
        with self.changed:
            log = self.topics[name].logs[partition]
            log.batches = [item for item in log.batches if item[1] < end]
            log.end = end
            log.epoch += 1

    # -- the service ----------------------------------------------------------------------------

    def Authenticate(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError

    def Describe(self, request: Any, context: Any) -> gateway_pb2.DescribeResponse:  # noqa: N802
        self.calls.append("Describe")
        is_behind = self.behind > 0
        self.behind -= is_behind
        answer = gateway_pb2.DescribeResponse(
            cluster_id=b"c" * 16, nodes=self.nodes, metadata_version=1 if is_behind else 2
        )
        for address in self.addresses:
            host, port = address.split(":")
            answer.gateways.append(common_pb2.Endpoint(host=host, port=int(port)))
        there = {} if is_behind else self.topics
        names = sorted(there) if request.all_topics else list(request.topics)
        for name in names:
            item = answer.topics.add(name=name)
            topic = there.get(name)
            if topic is None or name in self.mute_describe:
                item.error.code = 3
                continue
            item.topic_id = topic.topic_id
            for index in range(len(topic.logs)):
                item.partitions.add(partition=index, leader=1)
        return answer

    def _offset(self, query: Any) -> gateway_pb2.OffsetResult:
        result = gateway_pb2.OffsetResult(
            topic=query.topic, partition=query.partition, offset=-1, timestamp_ms=-1
        )
        topic = self.topics.get(query.topic)
        if topic is None or query.partition >= len(topic.logs):
            result.error.code = 3
            return result
        log = topic.logs[query.partition]
        result.topic_id = topic.topic_id
        result.leader_epoch = log.epoch
        if query.timestamp_ms == -1:
            result.offset = max(log.end + self.latest_shift, 0)
        elif query.timestamp_ms == -2:
            result.offset = log.start
        else:
            later = [offset for stamp, offset in log.times if stamp >= query.timestamp_ms]
            result.offset = later[0] if later else -1
        return result

    def ListOffsets(self, request: Any, context: Any) -> gateway_pb2.ListOffsetsResponse:  # noqa: N802
        self.calls.append("ListOffsets")
        self.waits_ms.append(request.wait_ms)
        deadline = time.monotonic() + request.wait_ms / 1000
        with self.changed:
            while True:
                results = [self._offset(query) for query in request.queries]
                news = any(r.offset > q.known_offset for q, r in zip(request.queries, results, strict=True))
                left = deadline - time.monotonic()
                if news or left <= 0 or not context.is_active():
                    self.after_list()
                    return gateway_pb2.ListOffsetsResponse(results=results)
                self.holds.set()
                self.changed.wait(min(left, 0.5))

    def CommitGroup(self, request: Any, context: Any) -> gateway_pb2.CommitGroupResponse:  # noqa: N802
        self.commits.append(request)
        self.group |= {(item.topic, item.partition): item.offset for item in request.offsets}
        return gateway_pb2.CommitGroupResponse(errors=[common_pb2.Error() for _ in request.offsets])

    def CreateTopic(self, request: Any, context: Any) -> gateway_pb2.CreateTopicResponse:  # noqa: N802
        self.calls.append(f"CreateTopic {request.name} {request.partitions}")
        answer = gateway_pb2.CreateTopicResponse()
        if not self.makes_topics:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "an older build")
        if self.no_topic:
            answer.error.code, answer.error.message = self.no_topic
        if not self.no_topic or self.no_topic[0] == TOPIC_ALREADY_EXISTS:
            self.create(request.name, request.partitions)
        return answer

    def GroupOffsets(self, request: Any, context: Any) -> gateway_pb2.GroupOffsetsResponse:  # noqa: N802
        answer = gateway_pb2.GroupOffsetsResponse()
        for (topic, part), offset in self.group.items():
            answer.offsets.add(topic=topic, partition=part, offset=offset)
        return answer

    def EpochEnds(self, request: Any, context: Any) -> gateway_pb2.EpochEndsResponse:  # noqa: N802
        self.calls.append("EpochEnds")
        if not self.knows_epochs:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "an older build")
        answer = gateway_pb2.EpochEndsResponse()
        for query in request.queries:
            log = self.topics[query.topic].logs[query.partition]
            later = [first for first, _, data in log.batches if epoch_of(data) > query.leader_epoch]
            answer.ends.add(leader_epoch=query.leader_epoch, end_offset=later[0] if later else log.end)
        return answer

    def SizeRanges(self, request: Any, context: Any) -> gateway_pb2.SizeRangesResponse:  # noqa: N802
        self.calls.append("SizeRanges")
        if not self.knows_sizes:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "an older build")
        answer = gateway_pb2.SizeRangesResponse()
        for wanted in request.ranges:
            log = self.topics[wanted.topic].logs[wanted.partition]
            inside = [
                (last + 1, len(data))
                for first, last, data in log.batches
                if first < wanted.end and last >= wanted.start
            ]
            one = answer.ranges.add(size_bytes=sum(size for _, size in inside))
            taken = 0
            for at, (end, size) in enumerate(inside[:-1]):
                taken += size
                if request.cut_bytes and taken + inside[at + 1][1] > request.cut_bytes:
                    one.cuts.append(end)
                    taken = 0
        return answer

    def Produce(self, request_iterator: Any, context: Any) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not needed here")

    def FetchRange(self, request: Any, context: Any) -> Iterator[data_pb2.FetchRangeResponse]:  # noqa: N802
        self.calls.append(f"FetchRange {request.from_offset}")
        topic = self.topics.get(request.topic)
        if topic is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no topic {request.topic}")
            return
        if request.topic_id and request.topic_id != topic.topic_id:
            yield data_pb2.FetchRangeResponse(error=common_pb2.Error(code=103, message="another topic id"))
            return
        if error := self.instead():
            yield data_pb2.FetchRangeResponse(error=common_pb2.Error(code=error[0], message=error[1]))
            return
        log = topic.logs[request.partition]
        position, sent = request.from_offset, 0
        # A handler that outlives its call would keep the whole test run from ending.
        while position < request.to_offset and context.is_active():
            if not log.start <= position <= log.end:
                yield data_pb2.FetchRangeResponse(
                    error=common_pb2.Error(code=1, message=f"{position} is outside {log.start}..{log.end}"),
                    log_start_offset=log.start,
                )
                return
            if self.fault is not None:
                self.fault(context, sent)
            chunk, last = b"", position - 1
            with self.changed:
                for first_offset, last_offset, data in log.batches:
                    if last_offset < position or first_offset >= request.to_offset:
                        continue
                    if chunk and len(chunk) + len(data) > (request.max_chunk_bytes or 1 << 20):
                        break
                    chunk, last = chunk + data, last_offset
                if not chunk:
                    if log.end >= request.to_offset:
                        last = request.to_offset - 1  # a gap at the end of the range
                    else:
                        self.changed.wait(0.1)
                        continue
            position = last + 1
            sent += 1
            yield data_pb2.FetchRangeResponse(
                records=chunk,
                next_offset=position,
                log_start_offset=log.start,
                high_watermark=log.end,
                topic_id=topic.topic_id,
                leader_epoch=log.epoch,
                done=position >= request.to_offset,
                read_committed=request.read_committed and not self.is_old,
            )
