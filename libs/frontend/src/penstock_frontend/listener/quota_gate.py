"""Quotas at a process's Kafka listeners: what a request used, and for how long its client has to wait then.

Sources: Kafka 4.3, KafkaApis (handleProduceRequest, handleFetchRequest), RequestHandlerHelper, ClientQuotaManager,
ConnectionQuotas; KIP-124, KIP-219, KIP-599, KIP-612. Where nobody has a quota all this costs one question
(`is_active`) a request.

Rules
  * A request is answered without delay; then its connection is read no more for the time that the answer names.
  * Produce counts when it has come (Kafka: when it is answered), so that what was sent behind it is not read
    either. In Kafka a connection has one request at a time; here many.
  * A Fetch of somebody who is over is answered empty, without asking a node. Others may bring what is left, and
    at least a second's worth, and is not taken away again.
  * Request time is that of the event loop, which one request may be throttled for by a second at most; that of
    Produce without acknowledgement is not counted.
  * Requests before sign-in are not counted, as in Kafka; `login_limits` bounds them.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from time import perf_counter
from typing import Any, Final, Protocol

from penstock_core.metadata.image import MetadataImage
from penstock_core.security.principal import Principal
from penstock_core.security.quota_book import Account, QuotaBook
from penstock_core.security.quota_entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
)
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_kafka.wire.apis import ApiKey, is_supported
from penstock_kafka.wire.fetch import encode_fetch_response
from penstock_kafka.wire.primitives import Buffer, Malformed
from penstock_kafka.wire.throttle import limit_fetch, with_throttle_time
from penstock_proto.v1 import controller_pb2 as pb

_HEAD: Final = struct.Struct(">hhih")
_LENGTH_BYTES: Final = 4
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)


class Metered(Protocol):
    """A connection as the gate sees it."""

    quota_account: tuple[bytes, Principal, Account] | None
    """The gate's own: whose account was found last."""

    @property
    def principal(self) -> Principal:
        """Who the client is."""
        ...

    def mute(self, throttle_ms: int) -> None:
        """Read no request for so long."""
        ...


class Charge:
    """What one request used so far."""

    __slots__ = ("account", "answer", "api_key", "spent_s", "version")

    def __init__(self, account: Account, api_key: int, version: int) -> None:
        self.account = account
        self.api_key = api_key
        self.version = version
        self.spent_s = 0.0
        """Time of the event loop."""
        self.answer: list[Buffer] | None = None
        """The answer, if nobody needs to be asked for it."""


class QuotaGate:
    """The quotas of one process, for all its listeners."""

    def __init__(self, book: QuotaBook, clock_ms: Callable[[], int], metrics: KafkaMetrics) -> None:
        self.is_active = False
        """Whether any client has a quota."""
        self._book = book
        self._clock_ms = clock_ms
        self._metrics = metrics
        self._quotas: Mapping[QuotaEntity, Mapping[str, float]] | None = None
        metrics.quota_buckets = lambda: book.bucket_count

    @classmethod
    def idle(cls) -> QuotaGate:
        """One that limits nobody."""
        return cls(QuotaBook(), lambda: 0, KafkaMetrics())

    def metadata_changed(self, old: MetadataImage, new: MetadataImage, _records: Sequence[Any] = ()) -> None:
        """Follow the metadata: a callback of `MetadataClient.on_change`."""
        if new.gateways is not old.gateways or new.nodes is not old.nodes or self._quotas is None:
            self._book.set_processes(sharing_processes(new), self._clock_ms())
        if new.security.quotas is not self._quotas:
            self._quotas = new.security.quotas
            self._book.set_quotas(self._quotas)
            self.is_active = self._book.limits_clients

    # Requests

    def arrived(self, connection: Metered, frame: bytearray, *, goes_on: bool = False) -> Charge | None:
        """A request of a client that has signed in, before anybody reads it; None when it uses nothing limited.

        `goes_on`: the rest of it is still to come, and is read before its client has to wait.
        """
        if len(frame) < _HEAD.size:
            return None
        api_key, version, _, size = _HEAD.unpack_from(frame)
        client_id = bytes(frame[_HEAD.size : _HEAD.size + size]) if size > 0 else b""
        account = self._account(connection, client_id)
        charge = Charge(account, api_key, version)
        if api_key == _PRODUCE and account.produce is not None:
            throttle_ms = account.produce.use(len(frame), self._clock_ms())
            if throttle_ms and not goes_on:
                connection.mute(throttle_ms)
        elif api_key == _FETCH and account.fetch is not None and is_supported(api_key, version):
            now_ms = self._clock_ms()
            account.fetch.used_ms = now_ms
            try:
                header = limit_fetch(frame, account.fetch.most_at_once(now_ms))
                if account.fetch.owed_ms(now_ms):
                    charge.answer = encode_fetch_response(header, ())
            except Malformed:
                pass  # whoever reads it refuses it
        elif account.request is None:
            return None
        return charge

    def _account(self, connection: Metered, client_id: bytes) -> Account:
        known, principal = connection.quota_account, connection.principal
        if known is not None and known[0] == client_id and known[1] is principal:
            account = known[2]
            if account.version == self._book.version and not account.has_dropped:
                return account
        account = self._book.account(principal.name, client_id.decode("utf-8", "replace"), self._clock_ms())
        connection.quota_account = (client_id, principal, account)
        return account

    def answered(
        self, connection: Metered, charge: Charge, response: Sequence[Buffer] | bytes
    ) -> Sequence[Buffer] | bytes:
        """The answer as it leaves, with the time that its client is throttled."""
        now_ms, account, api_key = self._clock_ms(), charge.account, charge.api_key
        throttle_ms, key = 0, PRODUCER_BYTE_RATE
        if api_key == _PRODUCE and account.produce is not None:
            throttle_ms = account.produce.owed_ms(now_ms)
        elif api_key == _FETCH and account.fetch is not None:
            key = CONSUMER_BYTE_RATE
            if charge.answer is None:
                size = len(response) if isinstance(response, bytes) else sum(map(len, response))
                throttle_ms = account.fetch.use(size + _LENGTH_BYTES, now_ms)
            else:
                throttle_ms = account.fetch.owed_ms(now_ms)
        if account.request is not None:
            request_ms = account.request.use_request_time(charge.spent_s * 100, now_ms)
            if request_ms > throttle_ms:
                throttle_ms, key = request_ms, REQUEST_PERCENTAGE
        if not throttle_ms:
            return response
        self._metrics.count_throttle(key, throttle_ms)
        connection.mute(throttle_ms)
        return with_throttle_time(api_key, charge.version, response, throttle_ms)

    def unanswered(self, connection: Metered, charge: Charge) -> None:
        """A Produce that asked for no answer is done."""
        bucket = charge.account.produce
        if bucket is not None and (throttle_ms := bucket.owed_ms(self._clock_ms())):
            self._metrics.count_throttle(PRODUCER_BYTE_RATE, throttle_ms)
            connection.mute(throttle_ms)

    def mutation_quota(
        self, connection: Metered, client_id: str | None, *, strict: bool
    ) -> pb.MutationQuota | None:
        """Whose quota the partitions of a request count for; None where nobody has any."""
        if not self.is_active:
            return None
        return pb.MutationQuota(user=connection.principal.name, client_id=client_id or "", strict=strict)

    def throttle_mutations(self, connection: Metered, throttle_ms: int) -> None:
        """The active controller throttles a client for the partitions that it makes or deletes."""
        if throttle_ms > 0:
            self._metrics.count_throttle(CONTROLLER_MUTATION_RATE, throttle_ms)
            connection.mute(throttle_ms)

    def use_bytes(self, key: str, who: Principal, size: int) -> int:
        """What a client of another API wrote or was given (key: that of its quota); for how long (ms) it waits now."""
        now_ms = self._clock_ms()
        account = self._book.account(who.name, "", now_ms)
        bucket = account.produce if key == PRODUCER_BYTE_RATE else account.fetch
        throttle_ms = 0 if bucket is None else bucket.use(size, now_ms)
        if throttle_ms:
            self._metrics.count_throttle(key, throttle_ms)
        return throttle_ms

    # Connections

    def may_connect(self, host: str) -> bool | None:
        """Whether the quota of an address allows one more connection now; None: it has no quota."""
        if not self._book.limits_addresses:
            return None
        now_ms = self._clock_ms()
        bucket = self._book.address(_plain(host), now_ms)
        if bucket is None:
            return None
        if throttle_ms := bucket.owed_ms(now_ms):
            bucket.used_ms = now_ms  # it wants more
            self._metrics.count_throttle(CONNECTION_CREATION_RATE, throttle_ms)
            return False
        bucket.use(1, now_ms)
        return True

    # Shares

    def report(self) -> pb.QuotaReport | None:
        """What this process wants of quotas, for its next heartbeat; None when it has nothing to say."""
        demands = self._book.report(self._clock_ms())
        if demands is None:
            return None
        return pb.QuotaReport(
            demands=[pb.QuotaPart(bucket=bucket, part=part) for bucket, part in demands.items()]
        )

    def take_shares(self, shares: pb.QuotaShares) -> None:
        """What the active controller dealt."""
        self._book.take_shares(((each.bucket, each.part) for each in shares.shares), self._clock_ms())


def sharing_processes(image: MetadataImage) -> int:
    """How many processes clients may connect to: gateways, and nodes with listeners of their own."""
    return len(image.gateways) + sum(1 for node in image.nodes.values() if node.listeners and not node.fenced)


def _plain(host: str) -> str:
    """An address as quotas spell it."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:  # a Unix socket's
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


class Timed(Coroutine[Any, Any, Any]):
    """A coroutine whose steps are charged."""

    __slots__ = ("_charge", "_inner")

    def __init__(self, inner: Coroutine[Any, Any, Any], charge: Charge) -> None:
        self._inner = inner
        self._charge = charge

    def send(self, value: Any) -> Any:
        began_s = perf_counter()
        try:
            return self._inner.send(value)
        finally:
            self._charge.spent_s += perf_counter() - began_s

    def throw(self, *error: Any) -> Any:
        return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._inner.__await__()
