"""The gRPC service `penstock.v1.Gateway`.

Failures are gRPC statuses with one line that names the thing and the mend; failures of
single partitions travel as `Error` with Kafka's codes. FetchRange is registered without
generated classes for its responses, since they pass by as bytes.

A client may tell which authority it dialled in the metadata key `penstock-dialled`
("host:port"): gRPC for Python does not show it to a server, and it is the one address
known to work from where the client is. `Describe` then names it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, NoReturn

import grpc
import grpc.aio

from penstock_core.addresses import Address, parse_address
from penstock_core.errors import CHECK_PARTITION, FIND_LEADER, ErrorCode, PenstockError
from penstock_core.ids import TopicId, TopicPartition
from penstock_core.limits import KAFKA_FRAME_BYTES_MAX
from penstock_core.metadata.image import Endpoint
from penstock_core.security.quota_entities import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from penstock_core.topics import OFFSETS_TOPIC
from penstock_frontend.authorizer import Identity, Operation, ResourceType
from penstock_frontend.sign_in.callers import CallerDoor
from penstock_gateway.relay.client_relay import ClientInfo, ClientRelay
from penstock_gateway.relay.relay import Relay
from penstock_gateway.rpc.authenticate import Authenticator
from penstock_gateway.rpc.describe import describe, gateway_endpoints, node_listeners, peer_host
from penstock_gateway.rpc.epoch_ends import epoch_ends
from penstock_gateway.rpc.fetch_range import RangeFailed, RangeRelay
from penstock_gateway.rpc.groups import OFFSETS_MAX, commit_group, group_offsets, with_topic
from penstock_gateway.rpc.guard import identity_of
from penstock_gateway.rpc.offsets import LATEST, OffsetAnswer, list_offsets, wait_for_records
from penstock_gateway.rpc.produce import ProduceStream
from penstock_gateway.rpc.query_sessions import QuerySessions
from penstock_gateway.rpc.size_ranges import size_ranges
from penstock_gateway.rpc.topics import create_topic
from penstock_gateway.rpc.units import UnitMethods, UnitRelay
from penstock_kafka.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from penstock_proto.v1 import data_pb2, gateway_pb2_grpc
from penstock_proto.v1 import gateway_pb2 as pb
from penstock_runtime.controller_client import ControllerClient

DIALLED_KEY: Final = "penstock-dialled"
LISTENER: Final = "GRPC"
QUERIES_MAX: Final = 100_000
WAIT_MS_MAX: Final = 300_000
WAIT_ROUND_MS: Final = 10_000
RETRY_MS: Final = 50

Context = grpc.aio.ServicerContext[Any, Any]


class GatewayService(UnitMethods, gateway_pb2_grpc.GatewayServicer):
    """Answers native clients."""

    def __init__(
        self,
        relay: Relay,
        own_endpoint: Callable[[], Endpoint],
        batch_bytes_max: int = KAFKA_FRAME_BYTES_MAX,
        door: CallerDoor | None = None,
        controllers: ControllerClient | None = None,
        have_offsets_topic: Callable[[str], Awaitable[str]] | None = None,
        direct_listeners: Mapping[str, str] | None = None,
    ) -> None:
        """`batch_bytes_max`: of a batch that is produced in several messages. `door`: where clients sign in.

        `controllers` make topics, that of transactions when it is first needed; `have_offsets_topic` makes the topic
        that groups are kept in for a principal, and says why it is not there. `direct_listeners`: the security of this
        gateway's own, by name.
        """
        self._direct_listeners = direct_listeners or {}
        self._have_offsets_topic = have_offsets_topic
        self._authenticator = None if door is None else Authenticator(door)
        self._batch_bytes_max = batch_bytes_max
        self._relay = relay
        self._controllers = controllers
        self._units = UnitRelay(relay, controllers)
        self._own_endpoint = own_endpoint
        self._sessions = QuerySessions(lambda who: relay.open(ClientInfo(who, LISTENER)))

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with a server."""
        handlers = {
            "Authenticate": grpc.stream_stream_rpc_method_handler(
                self.Authenticate,
                pb.AuthenticateRequest.FromString,
                pb.AuthenticateResponse.SerializeToString,
            ),
            "Describe": grpc.unary_unary_rpc_method_handler(
                self.Describe, pb.DescribeRequest.FromString, pb.DescribeResponse.SerializeToString
            ),
            "ListOffsets": grpc.unary_unary_rpc_method_handler(
                self.ListOffsets, pb.ListOffsetsRequest.FromString, pb.ListOffsetsResponse.SerializeToString
            ),
            "SizeRanges": grpc.unary_unary_rpc_method_handler(
                self.SizeRanges, pb.SizeRangesRequest.FromString, pb.SizeRangesResponse.SerializeToString
            ),
            "EpochEnds": grpc.unary_unary_rpc_method_handler(
                self.EpochEnds, pb.EpochEndsRequest.FromString, pb.EpochEndsResponse.SerializeToString
            ),
            "GroupOffsets": grpc.unary_unary_rpc_method_handler(
                self.GroupOffsets,
                pb.GroupOffsetsRequest.FromString,
                pb.GroupOffsetsResponse.SerializeToString,
            ),
            "CommitGroup": grpc.unary_unary_rpc_method_handler(
                self.CommitGroup, pb.CommitGroupRequest.FromString, pb.CommitGroupResponse.SerializeToString
            ),
            "CreateTopic": grpc.unary_unary_rpc_method_handler(
                self.CreateTopic, pb.CreateTopicRequest.FromString, pb.CreateTopicResponse.SerializeToString
            ),
            "Produce": grpc.stream_stream_rpc_method_handler(
                self.Produce, pb.ProduceRequest.FromString, pb.ProduceResponse.SerializeToString
            ),
            # No serializer: the responses are bytes already.
            "FetchRange": grpc.unary_stream_rpc_method_handler(
                self.FetchRange, data_pb2.FetchRangeRequest.FromString
            ),
            **self._unit_handlers(),
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("penstock.v1.Gateway", handlers),)
        )

    # -- calls -----------------------------------------------------------------------------

    async def Authenticate(  # noqa: N802
        self, requests: AsyncIterator[pb.AuthenticateRequest], context: Context
    ) -> AsyncIterator[pb.AuthenticateResponse]:
        """Signs in; the one call that takes nothing."""
        await self._check_ready("Authenticate", context)
        if self._authenticator is None:
            await self._abort(
                "Authenticate", context, grpc.StatusCode.FAILED_PRECONDITION, "nobody signs in at this port"
            )
        assert self._authenticator is not None
        async for response in self._authenticator.responses(requests, context):
            yield response
        self._count("Authenticate", "OK")

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:  # noqa: N802
        """Cluster, topics and partitions."""
        await self._check_ready("Describe", context)
        self._count("Describe", "OK")
        image, authorizer, who = self._relay.metadata.image, self._relay.authorizer, identity_of(context)
        client_host = peer_host(context.peer())
        gateways = gateway_endpoints(
            image, self._own_endpoint(), self._relay.gateway_id, _dialled(context), client_host
        )
        response = describe(
            image,
            request,
            gateways,
            lambda names: authorizer.permitted(who, Operation.DESCRIBE, ResourceType.TOPIC, names),
            lambda node: node_listeners(node, self._direct_listeners, client_host),
        )
        for topic in response.topics:
            if topic.error.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                authorizer.denied(who, Operation.DESCRIBE, ResourceType.TOPIC, topic.name)
        return response

    async def ListOffsets(  # noqa: N802
        self, request: pb.ListOffsetsRequest, context: Context
    ) -> pb.ListOffsetsResponse:
        """Offsets by partition; waits for news when asked to."""
        await self._check_ready("ListOffsets", context)
        await self._check_count("ListOffsets", context, len(request.queries), QUERIES_MAX)
        try:
            answers = await self._list_offsets(context, request)
        except PenstockError as e:
            await self._abort("ListOffsets", context, grpc.StatusCode.UNAVAILABLE, e.message)
        self._count("ListOffsets", "OK")
        results = zip(request.queries, answers, strict=True)
        return pb.ListOffsetsResponse(results=[self._result(q, a) for q, a in results])

    async def SizeRanges(  # noqa: N802
        self, request: pb.SizeRangesRequest, context: Context
    ) -> pb.SizeRangesResponse:
        """Bytes of ranges of offsets, and where to cut them."""
        await self._check_ready("SizeRanges", context)
        await self._check_count("SizeRanges", context, len(request.ranges), QUERIES_MAX)
        self._count("SizeRanges", "OK")
        return await size_ranges(self._relay, identity_of(context), request)

    async def EpochEnds(  # noqa: N802
        self, request: pb.EpochEndsRequest, context: Context
    ) -> pb.EpochEndsResponse:
        """Where leader epochs end, by partition."""
        await self._check_ready("EpochEnds", context)
        await self._check_count("EpochEnds", context, len(request.queries), QUERIES_MAX)
        queries = [(q.topic, q.partition, q.leader_epoch) for q in request.queries]
        try:
            with self._sessions.of(identity_of(context)) as session:
                answers = await epoch_ends(session, queries)
        except PenstockError as e:
            await self._abort("EpochEnds", context, grpc.StatusCode.UNAVAILABLE, e.message)
        self._count("EpochEnds", "OK")
        response = pb.EpochEndsResponse()
        for (topic, partition, _), (code, epoch, end_offset) in zip(queries, answers, strict=True):
            end = response.ends.add(leader_epoch=epoch, end_offset=end_offset)
            if code:
                end.error.code, end.error.message = code, _explain(code, topic, partition)
        return response

    async def GroupOffsets(  # noqa: N802
        self, request: pb.GroupOffsetsRequest, context: Context
    ) -> pb.GroupOffsetsResponse:
        """What a group has committed. A cluster that has no group yet has no offsets of this one."""
        await self._check_ready("GroupOffsets", context)
        self._count("GroupOffsets", "OK")
        who = identity_of(context)
        may = self._relay.authorizer.authorize(who, Operation.DESCRIBE, ResourceType.GROUP, request.group)
        if may and self._relay.metadata.image.topic(OFFSETS_TOPIC) is None:
            return pb.GroupOffsetsResponse()
        try:
            with self._sessions.of(who) as session:
                return await group_offsets(session, request)
        except PenstockError as e:
            await self._abort("GroupOffsets", context, grpc.StatusCode.UNAVAILABLE, e.message)
            raise

    async def CommitGroup(  # noqa: N802
        self, request: pb.CommitGroupRequest, context: Context
    ) -> pb.CommitGroupResponse:
        """Commits offsets for a group without members."""
        await self._check_ready("CommitGroup", context)
        await self._check_count("CommitGroup", context, len(request.offsets), OFFSETS_MAX)
        self._count("CommitGroup", "OK")
        who = identity_of(context)

        async def make() -> str:
            may = self._relay.authorizer.authorize(who, Operation.READ, ResourceType.GROUP, request.group)
            has = self._relay.metadata.image.topic(OFFSETS_TOPIC) is not None
            if has or not may or self._have_offsets_topic is None:
                return ""
            return await self._have_offsets_topic(str(who.principal))

        try:
            with self._sessions.of(who) as session:
                return await with_topic(make, lambda: commit_group(session, request), request.group)
        except PenstockError as e:
            await self._abort("CommitGroup", context, grpc.StatusCode.UNAVAILABLE, e.message)
            raise

    async def CreateTopic(  # noqa: N802
        self, request: pb.CreateTopicRequest, context: Context
    ) -> pb.CreateTopicResponse:
        """Makes a topic; answers once this gateway knows it."""
        await self._check_ready("CreateTopic", context)
        try:
            answer = await create_topic(self._relay, self._controllers, identity_of(context), request)
        except PenstockError as e:
            await self._abort("CreateTopic", context, grpc.StatusCode.UNAVAILABLE, e.message)
            raise
        self._count("CreateTopic", "OK")
        return answer

    async def Produce(  # noqa: N802
        self, requests: AsyncIterator[pb.ProduceRequest], context: Context
    ) -> AsyncIterator[pb.ProduceResponse]:
        """Appends batches; answers in the order of the requests."""
        await self._check_ready("Produce", context)
        # Whoever says nothing costs no more than the call itself.
        first = await anext(aiter(requests), None)
        if first is None:
            self._count("Produce", "OK")
            return
        client = self._open(context)
        stream = ProduceStream(client, self._batch_bytes_max, self._quota_of(PRODUCER_BYTE_RATE, context))
        reader = asyncio.create_task(stream.read(_all_of(first, requests)), name="native produce requests")
        try:
            async for response in stream.responses():
                yield response
            await reader
            self._count("Produce", "OK")
        except PenstockError as e:
            await self._abort("Produce", context, grpc.StatusCode.INVALID_ARGUMENT, e.message)
        finally:
            reader.cancel()
            client.close()

    async def FetchRange(  # type: ignore[override]  # noqa: N802 - responses are bytes already
        self, request: data_pb2.FetchRangeRequest, context: Context
    ) -> AsyncIterator[bytes]:
        """Raw batches of one partition."""
        await self._check_ready("FetchRange", context)
        relay = self._relay
        try:
            who = identity_of(context)
            key = self._range_key(request, who)
            use_quota_ms = self._quota_of(CONSUMER_BYTE_RATE, context)
            ranged = RangeRelay(relay.metadata, relay.channels, request, key, relay.clock_ms, who)
            async with aclosing(ranged.responses()) as responses:
                async for data in responses:
                    # It may last long, and rights may be taken away meanwhile.
                    self._check_read(who, request.topic)
                    relay.metrics.to_clients_bytes += len(data)
                    yield data
                    if wait_ms := use_quota_ms(len(data)):
                        await asyncio.sleep(wait_ms / 1000)
            self._count("FetchRange", "OK")
        except RangeFailed as e:
            await self._abort("FetchRange", context, e.status, e.message)

    # -- parts -----------------------------------------------------------------------------

    async def _list_offsets(self, context: Context, request: pb.ListOffsetsRequest) -> list[OffsetAnswer]:
        queries = [(q.topic, q.partition, q.timestamp_ms) for q in request.queries]
        deadline_ms = self._relay.clock_ms() + min(request.wait_ms, WAIT_MS_MAX)
        waiting: ClientRelay | None = None
        isolation_level = READ_COMMITTED if request.read_committed else READ_UNCOMMITTED
        try:
            while True:
                with self._sessions.of(identity_of(context)) as session:
                    answers = await list_offsets(session, queries, isolation_level)
                at = _where_to_wait(request.queries, answers)
                left_ms = deadline_ms - self._relay.clock_ms()
                if left_ms <= 0 or not at:
                    return answers
                if waiting is None:
                    waiting = self._open(context)
                if not await wait_for_records(waiting, at, min(left_ms, WAIT_ROUND_MS), isolation_level):
                    # A leader moved, most likely: not a reason to spin.
                    await asyncio.sleep(RETRY_MS / 1000)
        finally:
            if waiting is not None:
                waiting.close()

    def _result(self, query: pb.OffsetQuery, answer: OffsetAnswer) -> pb.OffsetResult:
        topic = self._relay.metadata.image.topic(query.topic)
        result = pb.OffsetResult(
            topic=query.topic,
            partition=query.partition,
            offset=answer.offset,
            timestamp_ms=answer.timestamp_ms,
            leader_epoch=answer.leader_epoch,
            topic_id=b"" if topic is None else topic.topic_id,
        )
        if answer.error:
            result.error.code = answer.error
            result.error.message = _explain(answer.error, query.topic, query.partition)
        return result

    def _range_key(self, request: data_pb2.FetchRangeRequest, who: Identity) -> TopicPartition:
        """The partition that a FetchRange names; raises RangeFailed with the status for a wrong one."""
        name, partition = request.topic, request.partition
        topic = self._relay.metadata.image.topic(name)
        self._check_read(who, name)
        if topic is None:
            raise RangeFailed(
                grpc.StatusCode.NOT_FOUND,
                f"there is no topic {name!r}; create it, or see that the name is right",
            )
        if request.topic_id and request.topic_id != topic.topic_id:
            raise RangeFailed(
                grpc.StatusCode.NOT_FOUND,
                f"topic {name!r} was made anew: it has another id than the one asked for; start over",
            )
        if partition not in topic.partitions:
            raise RangeFailed(
                grpc.StatusCode.NOT_FOUND,
                f"topic {name!r} has partitions 0 to {len(topic.partitions) - 1}, not {partition}",
            )
        if request.from_offset < 0 or request.to_offset < -1:
            raise RangeFailed(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"offsets {request.from_offset} to {request.to_offset} of {name}-{partition}: "
                "from_offset is 0 or more, to_offset -1 (now) or more",
            )
        return TopicPartition(TopicId(topic.topic_id), partition)

    def _check_read(self, who: Identity, topic: str) -> None:
        if not self._relay.authorizer.authorize(who, Operation.READ, ResourceType.TOPIC, topic):
            raise RangeFailed(grpc.StatusCode.PERMISSION_DENIED, f"not allowed to read topic {topic}")

    def _quota_of(self, key: str, context: Context) -> Callable[[int], int]:
        """What takes the bytes of a call and says for how long (ms) its client waits then."""
        quotas, who = self._relay.quotas, identity_of(context).principal
        return lambda size: quotas.use_bytes(key, who, size) if quotas.is_active else 0

    def _open(self, context: Context) -> ClientRelay:
        return self._relay.open(ClientInfo(identity_of(context), LISTENER))

    async def _check_ready(self, method: str, context: Context) -> None:
        if not self._relay.metadata.image.version:
            await self._abort(
                method, context, grpc.StatusCode.UNAVAILABLE, "this gateway has no metadata yet; try again"
            )

    async def _check_count(self, method: str, context: Context, count: int, most: int) -> None:
        if count > most:
            await self._abort(
                method,
                context,
                grpc.StatusCode.INVALID_ARGUMENT,
                f"{count} queries, the most is {most}; ask in several calls",
            )

    async def _abort(self, method: str, context: Context, status: grpc.StatusCode, message: str) -> NoReturn:
        self._count(method, status.name)
        await context.abort(status, message)
        raise AssertionError("abort raises")

    def _count(self, method: str, status: str) -> None:
        self._relay.metrics.native_calls[method, status] += 1


def _where_to_wait(
    queries: Sequence[pb.OffsetQuery], answers: Sequence[OffsetAnswer]
) -> list[tuple[str, int, int]]:
    """(topic, partition, offset) of every "latest" asked for; none when there is news or a failure."""
    at = []
    for query, answer in zip(queries, answers, strict=True):
        if answer.error:
            return []
        if query.timestamp_ms == LATEST:
            if answer.offset > query.known_offset:
                return []
            at.append((query.topic, query.partition, answer.offset))
    return list(dict.fromkeys(at))


async def _all_of(
    first: pb.ProduceRequest, others: AsyncIterator[pb.ProduceRequest]
) -> AsyncIterator[pb.ProduceRequest]:
    yield first
    async for each in others:
        yield each


def _dialled(context: Context) -> Address | None:
    for key, value in context.invocation_metadata() or ():
        if key == DIALLED_KEY and isinstance(value, str):
            try:
                address = parse_address(value)
            except ValueError:
                return None
            return address if address.host and address.port else None
    return None


def _explain(code: int, topic: str, partition: int) -> str:
    where = f"{topic}-{partition}"
    if code in CHECK_PARTITION:
        return f"there is no partition {where}; see that topic and partition are right"
    if code in FIND_LEADER:
        return f"{where} has no leader at this moment; try again"
    try:
        return f"{where}: {ErrorCode(code).name}"
    except ValueError:
        return f"{where}: Kafka error {code}"
