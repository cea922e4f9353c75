"""Calls to gateways: Describe and ListOffsets for the planner, channels for everybody.

Any gateway answers for the whole cluster, so a failed call goes to the next address at
once, and only a whole round of failures waits. Retries are bounded by time and count.
Channels are kept per process and address: Spark reuses its Python workers, and a
connection per task would cost more than a small task. They are never pickled.
"""

from __future__ import annotations

import logging
import os
import random
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import grpc

from penstock_core.process.credentials import load_client_file
from penstock_core.process.native_account import Account, Metadata, account_of
from penstock_core.security.client_file import ClientFileError
from penstock_core.security.sasl import SaslFailure
from penstock_proto.v1 import data_pb2, gateway_pb2, gateway_pb2_grpc
from pyspark_penstock.epochs import BatchHead
from pyspark_penstock.errors import GatewayError, OptionError
from pyspark_penstock.options import SourceOptions, topic_pattern
from pyspark_penstock.rights import TOPIC_AUTHORIZATION_FAILED, needs

_T = TypeVar("_T")

_log = logging.getLogger("pyspark_penstock")

_MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Above the gateway's own bound, so that the gateway decides what is too large."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 500),
    # Whoever reads a stream takes its messages from the network itself: a thread of gRPC's own would fight with the
    # decoder over Python's lock, and free in one arena of memory what it took in another.
    ("SingleThreadedUnaryStream", 1),
)

_FETCH_RANGE = "/penstock.v1.Gateway/FetchRange"

_BATCH_HEAD = struct.Struct(">q4xi7xi")
"""Of a RecordBatch v2: base offset, partition leader epoch, last offset delta."""

INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's own (Topic.INTERNAL_TOPICS); other names that begin so are users'."""

READY_MS = 1_000
"""How long a gateway may take to show that it is there, before it is told that none is."""

CALL_TIMEOUT_MS = 10_000
"""One unary call, beside the time that it was asked to wait."""
RETRY_BUDGET_MS = 15_000
"""Planner calls go on trying at least so long, whatever fetchOffset.numRetries says: a leader or a
gateway that was killed is replaced within it."""
BEHIND_GRACE_MS = 5_000
"""How long a gateway whose metadata are older than those that were told before is not believed: one that has just
come up may have them from a controller that is behind, and a topic that it doesn't show is not gone. Versions fall for
good where a cluster is restored."""
_BACKOFF_MAX_MS = 1_000

# Kafka's error codes (org.apache.kafka.common.protocol.Errors).
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
UNKNOWN_TOPIC_ID = 100
INCONSISTENT_TOPIC_ID = 103
RETRIABLE_CODES = frozenset(
    {
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        8,  # BROKER_NOT_AVAILABLE
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        56,  # KAFKA_STORAGE_ERROR: the next leader may have it
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
    }
)
RETRIABLE_STATUS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
    }
)

_channels: dict[tuple[int, str, str], tuple[grpc.Channel, Account | None]] = {}


def channel(address: str, credentials_file: str = "") -> grpc.Channel:
    """This process's channel to a gateway. Channels don't survive a fork, hence the process id.

    Raises ClientFileError.
    """
    key = (os.getpid(), address, credentials_file)
    account = account_of(credentials_file) if credentials_file else None
    found = _channels.get(key)
    if found is None or found[1] is not account:
        pems = None if account is None else account.pems()
        made = (
            grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
            if pems is None
            else grpc.secure_channel(address, grpc.ssl_channel_credentials(*pems), options=CHANNEL_OPTIONS)
        )
        found = _channels[key] = made, account
    return found[0]


def stub(address: str, credentials_file: str = "") -> gateway_pb2_grpc.GatewayStub:
    return gateway_pb2_grpc.GatewayStub(channel(address, credentials_file))


class Access:
    """How one reader or planner gets at gateways: channels, and who it is there. Holds a path, and no secret."""

    def __init__(self, credentials_file: str = "") -> None:
        self._file = credentials_file
        self._shown: Metadata = ()
        self._asked_again = False

    def open(self, address: str) -> tuple[gateway_pb2_grpc.GatewayStub, Metadata]:
        """A gateway, and the metadata for a call; signs in when it is time to.

        Raises GatewayError for credentials that can't be used, and grpc.RpcError when the gateway is not there.
        """
        account: Account | None = None
        try:
            found = stub(address, self._file)
            account = account_of(self._file) if self._file else None
            self._shown = () if account is None else account.metadata(found.Authenticate)
        except (ClientFileError, SaslFailure) as error:
            raise GatewayError(f"{address}: credentialsFile {self._file}: {error}") from None
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED and account is not None:
                raise GatewayError(_refused(address, account, _details(error))) from None
            if error.code() not in RETRIABLE_STATUS:
                text = (
                    f"{address}: {error.code().name}, {_details(error)}; look at credentialsFile {self._file}"
                )
                raise GatewayError(text) from None
            raise
        return found, self._shown

    def open_range(self, address: str) -> tuple[Callable[..., Any], Metadata]:
        """FetchRange at a gateway, whose answers are left as bytes; otherwise like `open`."""
        _, metadata = self.open(address)
        call = channel(address, self._file).unary_stream(
            _FETCH_RANGE, data_pb2.FetchRangeRequest.SerializeToString, None
        )
        return call, metadata

    def may_ask_again(self, status: grpc.StatusCode) -> bool:
        """Whether a call ended for its token, which had a good end: then another try has a new one."""
        if status is not grpc.StatusCode.UNAUTHENTICATED or not self._file or self._asked_again:
            return False
        self._asked_again = account_of(self._file).refused(self._shown)
        return self._asked_again

    def answered(self) -> None:
        """A call went well: the next token that ends is another matter."""
        self._asked_again = False


def _refused(address: str, account: Account, why: str) -> str:
    """What to say of a name or password that a gateway didn't take: another try would hear the same."""
    return (
        f"the gateway at {address} refused the credentials of User {account.file.username} ({why}); "
        f"look at credentialsFile {account.file.path}: name, password and mechanism"
    )


class Claiming(Protocol):
    """Options of a reader or a writer."""

    @property
    def credentials_file(self) -> str: ...

    @property
    def claims(self) -> tuple[tuple[str, str], ...]: ...


def check_claims(options: Claiming) -> None:
    """Kafka's settings given beside credentialsFile must say what it says. Raises OptionError, with no value."""
    if not options.claims:
        return
    try:
        file = load_client_file(Path(options.credentials_file))
    except ClientFileError as error:
        raise OptionError(f"credentialsFile {options.credentials_file}: {error}") from None
    read = {"security.protocol": file.security_protocol, "sasl.mechanism": file.mechanism or ""}
    for name, value in options.claims:
        said = read[name] if name in read else file.properties.get(name, "")
        if said.lower() != value.lower():
            raise OptionError(
                f"option kafka.{name} says otherwise than credentialsFile {options.credentials_file}: write it there"
            )


def is_answering(addresses: Sequence[str], credentials_file: str = "") -> bool:
    """Whether a gRPC server is there at any of them. Takes up to READY_MS, and is asked only before giving up."""
    waits = []
    for address in addresses:
        with suppress(ClientFileError):
            waits.append(grpc.channel_ready_future(channel(address, credentials_file)))
    deadline = time.monotonic() + READY_MS / 1000
    try:
        for wait in waits:
            with suppress(grpc.FutureTimeoutError):
                wait.result(timeout=max(deadline - time.monotonic(), 0))
                return True
        return False
    finally:
        for wait in waits:
            wait.cancel()


def unreachable(addresses: Sequence[str], reason: str, credentials_file: str = "") -> GatewayError:
    """The error for calls that come to nothing, with the mistake that is made most when no gateway is there."""
    names = ", ".join(addresses)
    if is_answering(addresses, credentials_file):
        return GatewayError(
            f"{reason}; gateways answer at {names}, so look at the storage nodes: penstock local status, or "
            "penstock cluster describe, tells which are down"
        )
    return GatewayError(
        f"no gateway answers at {names} ({reason}); option gateway takes the gateway's "
        "gRPC address, which is not its Kafka port"
    )


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """One topic as described: its id tells one incarnation from the next of the same name."""

    name: str
    topic_id: bytes
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """Offset asked for; -1 when no record is that late. `code` is Kafka's error code, 0 for none."""

    offset: int
    topic_id: bytes
    code: int = 0
    message: str = ""
    leader_epoch: int = -1
    """With "latest": the epoch in which the leader told it; -1 when that is not known."""


@dataclass(frozen=True, slots=True)
class Query:
    """What to ask of one partition: -1 latest, -2 earliest, or a timestamp in ms."""

    topic: str
    partition: int
    timestamp_ms: int
    known_offset: int = 0


class UnknownCallError(GatewayError):
    """The gateway is of a build that does not know the call."""


class Backoff:
    """Waits between rounds of attempts: doubling, with jitter, up to one second."""

    def __init__(self, first_ms: int, sleep: Callable[[float], None] = time.sleep) -> None:
        self._first_ms = max(first_ms, 1)
        self._next_ms = self._first_ms
        self._sleep = sleep

    def wait(self) -> None:
        # Spreads the retries of many tasks; it protects nothing.
        self._sleep(self._next_ms * random.uniform(0.5, 1.0) / 1000)  # noqa: S311
        self._next_ms = min(self._next_ms * 2, _BACKOFF_MAX_MS)

    def reset(self) -> None:
        self._next_ms = self._first_ms


class GatewayClient:
    """Unary calls with retries over a list of gateways. Not thread-safe."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        retries_max: int = 3,
        retry_interval_ms: int = 10,
        retry_budget_ms: int = RETRY_BUDGET_MS,
        credentials_file: str = "",
        read_committed: bool = False,
    ) -> None:
        self._access = Access(credentials_file)
        self._credentials_file = credentials_file
        self._read_committed = read_committed
        self.addresses = tuple(addresses)
        self._at = 0
        self._retries_max = retries_max
        self._retry_interval_ms = retry_interval_ms
        self._retry_budget_ms = retry_budget_ms
        self.learned: tuple[str, ...] = ()
        """Gateways that the last Describe named: a fallback behind the configured ones, which are needed to begin."""
        self.described: Any = gateway_pb2.DescribeResponse()
        """The last answer of Describe."""
        self._version = 0
        """Of the metadata in it."""

    @classmethod
    def of(cls, options: SourceOptions) -> GatewayClient:
        """The planner's. Raises OptionError, and says what was given and means nothing: on the driver, once a query."""
        check_claims(options)
        for remark in options.remarks:
            _log.warning("%s", remark)
        return cls(
            options.gateways,
            retries_max=options.retries_max,
            retry_interval_ms=options.retry_interval_ms,
            credentials_file=options.credentials_file,
            read_committed=options.read_committed,
        )

    def others(self) -> tuple[str, ...]:
        """Learned gateways that were not configured."""
        return tuple(address for address in self.learned if address not in self.addresses)

    def describe(self, topics: Sequence[str] | None) -> dict[str, TopicInfo]:
        """Topics by name, missing ones left out; None asks for all."""
        request = gateway_pb2.DescribeRequest(topics=topics or (), all_topics=topics is None)

        def call(
            gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
        ) -> tuple[gateway_pb2.DescribeResponse, str]:
            answer = gateway.Describe(request, timeout=CALL_TIMEOUT_MS / 1000, metadata=metadata)
            reason = retriable(item.error.code for item in answer.topics)
            if 0 < answer.metadata_version < self._version and time.monotonic() < believed_s:
                reason = (
                    f"metadata of version {answer.metadata_version}, and {self._version} were told before"
                )
            return answer, reason

        believed_s = time.monotonic() + BEHIND_GRACE_MS / 1000
        try:
            answer = self.described = self.call(call)
        except UnknownCallError as error:
            raise GatewayError(
                f"{error}: this is the gRPC port of another role, or of another program; option gateway takes a "
                "gateway's"
            ) from None
        self._version = answer.metadata_version
        self.learned = tuple(_address(item.host, item.port) for item in answer.gateways)
        found: dict[str, TopicInfo] = {}
        for item in answer.topics:
            if item.error.code == UNKNOWN_TOPIC_OR_PARTITION:
                continue
            if item.error.code:
                reason = item.error.message or str(item.error.code)
                if item.error.code == TOPIC_AUTHORIZATION_FAILED:
                    reason = f"{reason}; {needs(self._credentials_file, 'Describe')}"
                raise GatewayError(f"topic {item.name}: {reason}")
            partitions = tuple(sorted(part.partition for part in item.partitions))
            found[item.name] = TopicInfo(item.name, bytes(item.topic_id), partitions)
        return found

    def create_topic(self, name: str, partitions: int) -> tuple[int, str]:
        """Kafka's error code, 0 for none, and why. A call that was repeated may hear that the topic exists."""
        request = gateway_pb2.CreateTopicRequest(name=name, partitions=partitions)

        def call(
            gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
        ) -> tuple[gateway_pb2.CreateTopicResponse, str]:
            answer = gateway.CreateTopic(request, timeout=CALL_TIMEOUT_MS / 1000, metadata=metadata)
            return answer, retriable([answer.error.code])

        error = self.call(call).error
        return error.code, error.message

    def list_offsets(self, queries: Sequence[Query], wait_ms: int = 0) -> list[OffsetAnswer]:
        """One answer per query, in order. With `wait_ms` the gateway waits that long for news."""
        if not queries:
            return []
        request = gateway_pb2.ListOffsetsRequest(
            queries=[
                gateway_pb2.OffsetQuery(
                    topic=query.topic,
                    partition=query.partition,
                    timestamp_ms=query.timestamp_ms,
                    known_offset=query.known_offset,
                )
                for query in queries
            ],
            wait_ms=wait_ms,
            read_committed=self._read_committed,
        )

        def call(
            gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
        ) -> tuple[gateway_pb2.ListOffsetsResponse, str]:
            timeout_s = (CALL_TIMEOUT_MS + wait_ms) / 1000
            answer = gateway.ListOffsets(request, timeout=timeout_s, metadata=metadata)
            if len(answer.results) != len(queries):
                raise GatewayError(f"{len(queries)} offsets asked for, {len(answer.results)} answered")
            return answer, retriable(item.error.code for item in answer.results)

        answer = self.call(call)
        return [
            OffsetAnswer(
                item.offset, bytes(item.topic_id), item.error.code, item.error.message, item.leader_epoch
            )
            for item in answer.results
        ]

    def first_batch(self, topic: TopicInfo, partition: int, start: int, end: int) -> BatchHead | None:
        """The first stored batch that holds an offset in [start, end), both inside the log; None in a gap.

        The batch comes with it: this is for questions that are asked seldom.
        """
        request = data_pb2.FetchRangeRequest(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=partition,
            from_offset=start,
            to_offset=end,
            max_chunk_bytes=1,
            takes_pieces=True,
        )

        def call(
            gateway: gateway_pb2_grpc.GatewayStub, metadata: Metadata
        ) -> tuple[data_pb2.FetchRangeResponse, str]:
            stream = gateway.FetchRange(request, timeout=CALL_TIMEOUT_MS / 1000, metadata=metadata)
            try:
                for response in stream:
                    return response, retriable([response.error.code])
            finally:
                stream.cancel()  # type: ignore[no-untyped-call]
            return data_pb2.FetchRangeResponse(), "the stream ended early"

        answer = self.call(call)
        if answer.error.code:
            reason = answer.error.message or f"Kafka error {answer.error.code}"
            raise GatewayError(f"batch at offset {start} of {topic.name}-{partition}: {reason}")
        data = answer.records or answer.piece.data
        if len(data) < _BATCH_HEAD.size:
            return None
        base_offset, epoch, last_delta = _BATCH_HEAD.unpack_from(data)
        return BatchHead(base_offset, base_offset + last_delta + 1, epoch)

    def call(self, call: Callable[[gateway_pb2_grpc.GatewayStub, Metadata], tuple[_T, str]]) -> _T:
        """Tries the gateways in turn. `call` returns its answer and why to ask again ("" for not at all).

        Raises UnknownCallError where one is too old for it and no other answers, GatewayError for the rest.
        """
        deadline = time.monotonic() + self._retry_budget_ms / 1000
        backoff = Backoff(self._retry_interval_ms)
        attempt = 0
        while True:
            reason = too_old = ""
            is_known = False
            addresses = self.addresses + self.others()
            for _ in addresses:
                address = addresses[self._at % len(addresses)]
                try:
                    answer, reason = call(*self._access.open(address))
                    self._access.answered()
                    if not reason:
                        return answer
                    is_known = True
                except grpc.RpcError as error:
                    status = error.code()
                    reason = f"{address}: {status.name}, {_details(error)}"
                    if status is grpc.StatusCode.UNIMPLEMENTED:
                        too_old = reason
                    elif status not in RETRIABLE_STATUS and not self._access.may_ask_again(status):
                        raise GatewayError(reason) from None
                self._at += 1
            if too_old and not is_known:
                raise UnknownCallError(too_old)
            if attempt >= self._retries_max and time.monotonic() >= deadline:
                raise unreachable(addresses, reason, self._credentials_file)
            attempt += 1
            backoff.wait()


def _details(error: grpc.RpcError) -> str:
    return (error.details() or "no details").splitlines()[0]


def retriable(codes: Iterable[int], among: frozenset[int] = RETRIABLE_CODES) -> str:
    """Why an answer must be asked for again; "" when it needn't."""
    found = sorted(among.intersection(codes))
    return f"Kafka error {found[0]} for a partition" if found else ""


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def select_topics(
    client: GatewayClient, options: SourceOptions, *, missing_ok: bool = False
) -> dict[str, TopicInfo]:
    """The topics and partitions that the options choose.

    Raises TopicMissingError for a named topic or partition that doesn't exist, unless
    `missing_ok`; a pattern may match nothing. It is looked for anywhere in a name, and finds
    none of Kafka's internal topics, as in Spark's connector since 3.4.
    """
    if options.subscribe_pattern:
        pattern = topic_pattern(options.subscribe_pattern)
        return {
            name: topic
            for name, topic in client.describe(None).items()
            if pattern.search(name) and name not in INTERNAL_TOPICS
        }
    wanted: dict[str, tuple[int, ...] | None] = dict.fromkeys(options.subscribe) or dict(options.assign)
    described = client.describe(list(wanted))
    found: dict[str, TopicInfo] = {}
    missing: list[str] = []
    for name, partitions in wanted.items():
        topic = described.get(name)
        if topic is None:
            missing.append(name)
            continue
        chosen = topic.partitions if partitions is None else partitions
        there = tuple(part for part in chosen if part in topic.partitions)
        missing += [f"{name}-{part}" for part in chosen if part not in there]
        found[name] = TopicInfo(name, topic.topic_id, there)
    if missing and not missing_ok:
        raise TopicMissingError(
            f"no such topic or partition: {', '.join(missing)}; create it first, or correct the option"
        )
    return found


class TopicMissingError(OptionError):
    """A topic or partition that was named doesn't exist (any more)."""
