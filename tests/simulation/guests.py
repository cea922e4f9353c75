"""Clients that sign in and may do one thing, as long as they may: read a topic, or write it.

One request at a time, so that it is plain what each was allowed when it was sent. Signing in is a stand-in: the
client has the stored key, and the process compares it with its metadata. What ends connections afterwards is
the shipped `SignedIn`, and what limits them the shipped `QuotaGate`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock_core.errors import ErrorCode
from penstock_core.ids import NO_NODE, TopicId, TopicPartition
from penstock_core.metadata.security import CredentialKey
from penstock_core.security.acl import AclOperation
from penstock_core.security.principal import Identity, Principal, user
from penstock_core.security.quota_book import Account
from penstock_core.security.scram import ScramMechanism
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_frontend.sign_in.credentials import Reliance, SignedIn
from penstock_gateway.relay.client_relay import ClientInfo, ClientRelay
from penstock_gateway.relay.request import Ending, Outcome
from penstock_kafka.records.build import NewRecord, build_batch
from penstock_kafka.wire.fetch import (
    FetchPartition,
    FetchRequest,
    decode_fetch_response,
    encode_fetch_request,
)
from penstock_kafka.wire.primitives import Buffer
from penstock_kafka.wire.produce import (
    ProducePartition,
    ProduceSkim,
    decode_produce_response,
    encode_produce_request,
)
from penstock_storage_node.kafka.request_context import RequestContext
from simulation.connections import DirectConnection, GatewayConnection, KafkaConnection

if TYPE_CHECKING:
    from simulation.process import Process
    from simulation.rights import Rights, Sent

S = 1_000_000
TIMEOUT_US = 6 * S
FETCH_VERSION, PRODUCE_VERSION = 16, 11
MECHANISM = ScramMechanism.SHA_256


class _SignedInConnection(KafkaConnection):
    """A connection whose client signs in before its first request. What `SignedIn` and `QuotaGate` want of one."""

    listener = "SECURE"
    peer = "guest"

    def __init__(self, process: Process, on_lost: Callable[[KafkaConnection], None], guest: Guest) -> None:
        super().__init__(process, on_lost)
        self.identity = guest.identity
        self.quota_account: tuple[bytes, Principal, Account] | None = None
        self._stored_key = guest.stored_key
        self.was_refused = False
        """It was let in by nobody."""
        self._is_in = False
        self._is_ending = False
        self._when_closed: list[Callable[[], object]] = []
        self._muted_until_ms = 0

    @property
    def principal(self) -> Principal:
        return self.identity.principal

    def handle(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        if self._is_ending or not (self._is_in or self._sign_in()):
            self.was_refused = not self._is_ending
            finish(Ending.CLOSE)
            return
        wait_ms = self._muted_until_ms - self.process.clock_ms()
        if wait_ms > 0:
            self.process.after(wait_ms * 1000, self._read_again, frame, finish)
            return
        gate: QuotaGate | None = getattr(self.process, "quotas", None)
        charge = gate.arrived(self, frame) if gate is not None and gate.is_active else None
        if gate is None or charge is None:
            super().handle(frame, finish)
        elif charge.answer is not None:
            finish(_parts(gate.answered(self, charge, charge.answer)))
        else:
            super().handle(
                frame,
                lambda outcome: finish(
                    outcome if isinstance(outcome, Ending) else _parts(gate.answered(self, charge, outcome))
                ),
            )

    def _read_again(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        self.process.loop.call_now(self._unless_closed, frame, finish)

    def _unless_closed(self, frame: bytearray, finish: Callable[[Outcome], None]) -> None:
        if not self.closed:
            self.handle(frame, finish)

    def _sign_in(self) -> bool:
        metadata = _metadata_of(self.process)
        key = CredentialKey(self.principal.name, MECHANISM)
        found = metadata.image.security.credentials.get(key)
        if found is None or found.stored_key != self._stored_key:
            return False
        _signed_in_at(self.process).add(self, Reliance(key, found.version))  # type: ignore[arg-type]
        self._is_in = True
        return True

    def mute(self, throttle_ms: int) -> None:
        """See `Metered`."""
        self._muted_until_ms = max(self._muted_until_ms, self.process.clock_ms() + throttle_ms)

    def on_closed(self, call: Callable[[], object]) -> None:
        """See `Connection`."""
        self._when_closed.append(call)

    def close_after_responses(self, _reason: str) -> None:
        """See `Connection`: no request is read any more."""
        self._is_ending = True
        if not self._waiting:
            self.abort(_reason)

    def abort(self, _reason: str) -> None:
        """See `Connection`."""
        if not self.closed:
            self.close()
            self.process.world.scheduler.after(1_000, self.lost)

    def end(self) -> None:
        calls, self._when_closed = self._when_closed, []
        for call in calls:
            call()
        super().end()


class GuestGatewayConnection(_SignedInConnection, GatewayConnection):
    """Through a gateway."""

    def open_relay(self) -> ClientRelay:
        relay: ClientRelay = self.process.relay.open(ClientInfo(self.identity, self.listener))  # type: ignore[attr-defined]
        return relay


class GuestDirectConnection(_SignedInConnection, DirectConnection):
    """To a storage node's own listener."""

    def request_context(self) -> RequestContext:
        return RequestContext(self.identity)


def _parts(answer: Sequence[Buffer] | bytes) -> Outcome:
    return [answer] if isinstance(answer, bytes) else list(answer)


def _metadata_of(process: Any) -> Any:
    """The process's metadata client."""
    return process.metadata if hasattr(process, "metadata") else process.role._metadata


def _signed_in_at(process: Any) -> SignedIn:
    found: SignedIn | None = getattr(process, "signed_in", None)
    if found is None:
        found = process.signed_in = SignedIn()
        signed_in = found
        _metadata_of(process).on_change(lambda old, new, _: signed_in.on_metadata(old, new))
    return found


class Guest:
    """One user's client."""

    def __init__(self, rights: Rights, number: int, *, writes: bool, direct_chance: float) -> None:
        self.rights = rights
        self.number = number
        self.name = f"guest-{number}"
        self.identity = Identity(user(self.name), f"10.0.0.{number}")
        self.writes = writes
        self.operation = AclOperation.WRITE if writes else AclOperation.READ
        self.stored_key = b""
        """What the client proves itself by; that of the metadata, unless it was changed behind its back."""
        self.last = ("", 0)
        """What became of its last request that told anything, and how often its right had changed then."""
        self._direct_chance = direct_chance
        self._connection: Any = None
        self._waiting: Any = None
        self._sent: Sent | None = None
        self._number = 0

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    def start(self) -> None:
        self._next()

    def _next(self) -> None:
        world, rng = self.rights.world, self.rights.rng
        if self.rights.is_over:
            return
        world.scheduler.after(int((0.1 + 0.4 * rng.random()) * S), self._next)
        keys = self.rights.partitions()
        if self._waiting is None and keys:
            self._request(rng.choice(keys))

    def _connect(self, key: TopicPartition) -> Any:
        world, rng = self.rights.world, self.rights.rng
        if rng.random() < self._direct_chance:
            state = world.partition_for(key, -1)
            if state is None or state.leader == NO_NODE:
                return None
            host = world.host_of[f"n{state.leader}"]
            if host.is_up and host.process.role is not None and hasattr(host.process.role, "_data"):
                return GuestDirectConnection(host.process, self._lost, self)
            return None
        up = [h for h in world.hosts if h.kind == "g" and h.is_up and h.process.is_serving]
        return GuestGatewayConnection(rng.choice(up).process, self._lost, self) if up else None

    def _request(self, key: TopicPartition) -> None:
        connection = self._connection
        if connection is not None and not connection.closed and self.rights.rng.random() < 0.15:
            connection.close()
        if connection is None or connection.closed:
            connection = self._connection = self._connect(key)
            if connection is None:
                return
        self._number += 1
        number = self._number
        sent = self._sent = self.rights.sent(self, connection)
        timer = self.rights.world.scheduler.after(TIMEOUT_US, self._timed_out, connection)
        self._waiting = timer

        def answered(data: bytes) -> None:
            if number == self._number and self._waiting is timer:
                timer.cancel()
                self._waiting = None
                self.rights.answered(self, sent, self._outcome(data))

        connection.send(self._frame(key, number), answered)

    def _frame(self, key: TopicPartition, number: int) -> bytes:
        if self.writes:
            batch = build_batch([NewRecord(None, b"%d-%d" % (self.number, number), 1_700_000_000_000)])
            item = ProducePartition(self.rights.topic, None, key.partition, memoryview(batch))
            frame = encode_produce_request(
                PRODUCE_VERSION, number, self.name, ProduceSkim(None, -1, 3_000, [item])
            )
            return b"".join(frame)
        part = FetchPartition("", TopicId(key.topic_id), key.partition, -1, 0, -1, -1, 1 << 12)
        return encode_fetch_request(
            FETCH_VERSION, number, self.name, FetchRequest(0, 1, 1 << 12, partitions=[part])
        )

    def _outcome(self, data: bytes) -> str:
        if self.writes:
            errors = {r.error for r in decode_produce_response(data, PRODUCE_VERSION).results}
        else:
            errors = {r.error for r in decode_fetch_response(data, FETCH_VERSION).results}
        if errors == {ErrorCode.NONE}:
            return "served"
        return "denied" if ErrorCode.TOPIC_AUTHORIZATION_FAILED in errors else ""

    def _timed_out(self, connection: Any) -> None:
        connection.close()
        self._lost(connection)

    def _lost(self, connection: Any) -> None:
        if connection is self._connection:
            self._connection = None
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None
                if connection.was_refused and self._sent is not None:
                    self.rights.answered(self, self._sent, "refused")
