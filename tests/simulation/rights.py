"""Users whose rights come and go: who changes them, and what must hold of every request meanwhile.

A part of the seeds has them, drawn from a generator of their own; there gateways and nodes decide by ACLs, and all
other clients are super users. What a guest may do is read off the newest metadata by a decision of its own
(`_may`), never off what the administrator meant: a change whose answer was lost may come into force late.

Checked of each answer, by what was so when its request was sent, unless the right changed meanwhile:
* Who may not is not served by a process that has the metadata of the revocation, by a gateway when all nodes have that
  of a rule, nor by anybody BOUND_US after it when nothing hurt that process or the controllers.
* Who may is denied nothing where the gateway and all nodes have the metadata of the grant.
At the end everybody whose right is there is served, and nobody else, and what gateways may use of a quota together is
no more than the quota.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock_core.errors import ErrorCode
from penstock_core.ids import TopicPartition
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.security import CredentialKey
from penstock_core.security.acl import AclOperation, PatternType, Permission, ResourceType
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.authorizer import ANONYMOUS
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb
from simulation.guests import MECHANISM, Guest, S
from simulation.invariants import QUIET_US
from simulation.settings import RUN_US

if TYPE_CHECKING:
    from simulation.settings import Settings
    from simulation.world import World

CHANCE: Final = 0.25
"""Of a seed to have users."""
TOPIC: Final = "guarded"
BOUND_US: Final = 1_000_000
"""Within it a revoked right is gone everywhere where nothing is in the way."""
ITERATIONS: Final = 4_096
REVOCATIONS: Final = ("the rule removed", "a deny", "the user deleted", "another password")
_FINE: Final = (ErrorCode.NONE, ErrorCode.RESOURCE_NOT_FOUND)

Step = tuple[str, Any]


@dataclass(slots=True)
class Right:
    """What the newest metadata say of a guest."""

    may: bool = False
    version: int = 0
    """Since which metadata."""
    since_us: int = 0
    changes: int = 0
    is_by_rule: bool = False
    """The rules say no: nodes know it too. Who signed in is known to gateways alone, for what they relay."""
    key: bytes = b""
    """What the guest proved itself by then."""


class Sent(NamedTuple):
    """What was so when a request was sent."""

    changes: int
    must_not: str
    """Why it must not be served; "" when it may be."""
    must: bool
    """Nobody may deny it."""
    node_boots: tuple[int, ...]


class Rights:
    """All guests of one run, and their administrator."""

    topic = TOPIC

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.is_over = False
        self.guests = [
            Guest(self, number, writes=rng.random() < 0.5, direct_chance=rng.choice((0.0, 0.3, 1.0)))
            for number in range(1, rng.choice((2, 3, 4)) + 1)
        ]
        self.right_of = {guest.name: Right() for guest in self.guests}
        self.quota = rng.choice((None, 300.0, 2_000.0))
        """Bytes a second that each guest may write."""
        self._pause_s = rng.choice((2.0, 5.0))
        self._is_finishing = False
        self._settled: set[str] = set()
        """Guests whose last change is made."""
        self._seen_version = 0

    @classmethod
    def draw(cls, world: World, settings: Settings) -> Rights | None:
        """Those of this seed, None when it has none."""
        rng = random.Random(f"{world.seed}-rights")
        has = rng.random() < CHANCE
        if not (has or settings.with_rights):
            return None
        if rng.random() < 0.5:
            settings.gateways = 2
        return cls(world, rng)

    # --- for the shipped code

    def authorizer(self) -> AclAuthorizer:
        """Of a gateway."""
        return AclAuthorizer([ANONYMOUS])

    def node_settings(self) -> dict[str, Any]:
        """Of every storage node."""
        return {"authorizer": "acl", "super_users": [str(ANONYMOUS)]}

    # --- the run

    def start(self) -> None:
        """Make the topic, then the users."""
        self.world.scheduler.after(S, self._make_topic)

    def partitions(self) -> list[TopicPartition]:
        """Those that guests alone use."""
        topic = self._newest().topic(TOPIC)
        if topic is None:
            return []
        return [TopicPartition(topic.topic_id, number) for number in sorted(topic.partitions)]

    def _newest(self) -> MetadataImage:
        images = self.world.checker.images
        return images[max(images)]

    def _make_topic(self) -> None:
        new = api.NewTopic(name=TOPIC, partition_count=2, replication_factor=3)
        self._call("CreateTopics", api.CreateTopicsRequest(topics=[new]), self._made)

    def _made(self, _: Any) -> None:
        if self._newest().topic(TOPIC) is None:
            self.world.scheduler.after(S // 2, self._make_topic)
            return
        for guest in self.guests:
            guest.start()
            self.world.scheduler.after(int(self.rng.random() * 2 * S), self._change, guest)

    def _call(self, method: str, request: Any, done: Any) -> None:
        if not self.world.workload._call(method, request, done):
            self.world.scheduler.after(S // 2, self._call, method, request, done)

    # --- changes

    def _change(self, guest: Guest) -> None:
        """The guest's right goes, or comes again."""
        may = self._may(guest, self._newest())
        if self._is_finishing and self.rng.random() < 0.5:
            self._done(guest, b"")
            return
        if may:
            how = self.rng.choice(REVOCATIONS)
            self.world.counts[f"rights revoked: {how}"] += 1
            self.world.say("ADMIN", f"{guest.name}: {how}")
            self._carry_out(guest, [self._revocation(guest, how)], b"")
        else:
            self.world.counts["rights granted"] += 1
            self.world.say("ADMIN", f"{guest.name} may")
            key = self.rng.randbytes(32)
            self._carry_out(
                guest, [self._credential(guest, key), self._grant(guest), *self._quota(guest)], key
            )

    def _carry_out(self, guest: Guest, steps: Sequence[Step], key: bytes) -> None:
        if not steps:
            self._done(guest, key)
            return
        (method, request), *rest = steps

        def done(response: Any) -> None:
            if response is None or response.error.code or not _is_fine(response):
                self.world.scheduler.after(S // 2, self._carry_out, guest, steps, key)
            else:
                self._carry_out(guest, rest, key)

        self._call(method, request, done)

    def _done(self, guest: Guest, key: bytes) -> None:
        if key:
            guest.stored_key = key
        self.observe()
        if not self._is_finishing:
            wait_us = int(self.rng.expovariate(1) * self._pause_s * S) + 1
            if self.world.scheduler.now_us + wait_us < RUN_US:
                self.world.scheduler.after(wait_us, self._change, guest)
                return
        self._settled.add(guest.name)

    def _credential(self, guest: Guest, key: bytes) -> Step:
        change = api.UserCredentialChange(
            user=guest.name,
            mechanism=MECHANISM,
            salt=b"salt of a guest.",
            stored_key=key,
            server_key=key,
            iterations=ITERATIONS,
        )
        return "AlterUserCredentials", api.AlterUserCredentialsRequest(changes=[change])

    def _rule(self, guest: Guest, permission: Permission) -> pb.AclRecord:
        pattern, name = self.rng.choice(
            ((PatternType.LITERAL, TOPIC), (PatternType.LITERAL, "*"), (PatternType.PREFIXED, TOPIC[:3]))
        )
        return pb.AclRecord(
            resource_type=ResourceType.TOPIC,
            pattern_type=pattern,
            resource_name=name,
            principal=str(guest.identity.principal),
            host=self.rng.choice(("*", guest.identity.host)),
            operation=self.rng.choice((guest.operation, AclOperation.ALL)),
            permission=permission,
        )

    def _all_rules(self, guest: Guest, permission: Permission) -> api.AclFilter:
        return api.AclFilter(
            resource_type=ResourceType.TOPIC,
            pattern_type=PatternType.ANY,
            principal=str(guest.identity.principal),
            operation=AclOperation.ANY,
            permission=permission,
        )

    def _grant(self, guest: Guest) -> Step:
        return "AlterAcls", api.AlterAclsRequest(
            add=[self._rule(guest, Permission.ALLOW)], remove=[self._all_rules(guest, Permission.DENY)]
        )

    def _revocation(self, guest: Guest, how: str) -> Step:
        if how == "the rule removed":
            return "AlterAcls", api.AlterAclsRequest(remove=[self._all_rules(guest, Permission.ALLOW)])
        if how == "a deny":
            return "AlterAcls", api.AlterAclsRequest(add=[self._rule(guest, Permission.DENY)])
        if how == "the user deleted":
            gone = api.UserCredentialChange(user=guest.name, mechanism=MECHANISM, remove=True)
            return "AlterUserCredentials", api.AlterUserCredentialsRequest(changes=[gone])
        return self._credential(guest, self.rng.randbytes(32))

    def _quota(self, guest: Guest) -> list[Step]:
        if self.quota is None:
            return []
        value = api.QuotaValue(key="producer_byte_rate", value=self.quota)
        change = api.QuotaChange(user=guest.name, values=[value])
        return [("AlterQuotas", api.AlterQuotasRequest(changes=[change]))]

    # --- what holds

    def _may(self, guest: Guest, image: MetadataImage) -> bool:
        """Whether the metadata let the guest in and have it do its one thing."""
        credential = image.security.credentials.get(CredentialKey(guest.name, MECHANISM))
        if credential is None or credential.stored_key != guest.stored_key:
            return False
        return self._is_allowed(guest, image)

    @staticmethod
    def _is_allowed(guest: Guest, image: MetadataImage) -> bool:
        """By the rules alone."""
        about = [
            row.permission
            for row in image.security.acls
            if row.principal == str(guest.identity.principal)
            and row.resource_type == ResourceType.TOPIC
            and row.host in ("*", guest.identity.host)
            and row.operation in (AclOperation.ALL, guest.operation)
            and (
                TOPIC.startswith(row.resource_name)
                if row.pattern_type == PatternType.PREFIXED
                else row.resource_name in ("*", TOPIC)
            )
        ]
        return Permission.ALLOW in about and Permission.DENY not in about

    def observe(self) -> None:
        """Follow what the controllers have committed."""
        images = self.world.checker.images
        for version in sorted(v for v in images if v > self._seen_version):
            before = images.get(self._seen_version)
            self._seen_version = version
            if before is None or before.security is not images[version].security:
                for guest in self.guests:
                    self._note(guest, images[version])
        for guest in self.guests:
            if guest.stored_key != self.right_of[guest.name].key:
                self._note(guest, self._newest())

    def _note(self, guest: Guest, image: MetadataImage) -> None:
        right, may = self.right_of[guest.name], self._may(guest, image)
        if may != right.may or guest.stored_key != right.key:
            right.may, right.version, right.key = may, image.version, guest.stored_key
            right.is_by_rule = not self._is_allowed(guest, image)
            right.since_us = self.world.scheduler.now_us
            right.changes += 1
        elif right.is_by_rule and self._is_allowed(guest, image):
            # Granted but for the new key, whose answer is still awaited: nodes have nothing against the guest.
            right.is_by_rule = False
            right.changes += 1

    def sent(self, guest: Guest, connection: Any) -> Sent:
        """A guest sends a request."""
        self.observe()
        right, process = self.right_of[guest.name], connection.process
        nodes = [host.process for host in self.world.hosts if host.kind == "n" and host.is_up]
        all_nodes_know = bool(nodes) and all(self._knows(node, right.version) for node in nodes)
        must_not = ""
        if not right.may:
            if self._knows(process, right.version):
                must_not = f"{process.name} has metadata {right.version}"
            elif all_nodes_know and right.is_by_rule:
                must_not = f"all nodes have metadata {right.version}"
            elif right.since_us + BOUND_US <= self.world.scheduler.now_us and self._is_quiet(process.name):
                must_not = f"nothing hurt {process.name}, and {BOUND_US / S} s are over"
        is_whole = len(nodes) == self.world.settings.nodes
        must = right.may and all_nodes_know and is_whole and self._knows(process, right.version)
        return Sent(right.changes, must_not, must, self._boots())

    def _boots(self) -> tuple[int, ...]:
        return tuple(h.process.boots if h.process else 0 for h in self.world.hosts if h.kind == "n")

    @staticmethod
    def _knows(process: Any, version: int) -> bool:
        if hasattr(process, "relay"):
            return bool(process.metadata.image.version >= version)
        return process.manager is not None and bool(process.manager.registry.image.version >= version)

    def _is_quiet(self, name: str) -> bool:
        world = self.world
        names = [name, *(h.name for h in world.hosts if h.kind == "c")]
        since_us = world.scheduler.now_us - QUIET_US
        return all(world.network.disturbed_us.get(each, 0) < since_us for each in names) and not any(
            source in names and target in names for source, target in world.network.blocked
        )

    def answered(self, guest: Guest, sent: Sent, outcome: str) -> None:
        """What became of it: served, denied, refused (at sign-in), or nothing that tells."""
        self.observe()
        right = self.right_of[guest.name]
        if right.changes != sent.changes or not outcome:
            return
        guest.last = (outcome, right.changes)
        self.world.counts[f"guests {outcome}"] += 1
        if outcome == "served" and sent.must_not:
            self.world.checker.fail(
                "no request is served after its right was revoked",
                f"{guest.name}, revoked {right.since_us / S} s: {sent.must_not}",
            )
        if outcome != "served" and sent.must and sent.node_boots == self._boots():
            self.world.checker.fail(
                "who may is not denied", f"{guest.name} is {outcome}; it may since {right.since_us / S} s"
            )

    # --- the end

    def finish(self) -> None:
        """Faults are over: some rights change once more."""
        self._is_finishing = True
        for guest in self.guests:
            if guest.name in self._settled:
                self._settled.discard(guest.name)
                self._change(guest)

    def why_not_done(self) -> str:
        """What still lacks, "" when everybody got what the metadata say."""
        self.observe()
        for guest in self.guests:
            right = self.right_of[guest.name]
            if guest.name not in self._settled:
                return f"the right of {guest.name} is being changed"
            outcome, changes = guest.last
            if changes != right.changes or (outcome == "served") != right.may:
                return f"{guest.name} is {outcome or 'not answered'}, and may: {right.may}"
        if excess := self._too_much_dealt():
            return excess
        self.is_over = True
        return self._why_not_quiet()

    def _too_much_dealt(self) -> str:
        limits: Counter[Any] = Counter()
        for host in self.world.hosts:
            if host.kind == "g" and host.is_up and host.process.quotas is not None:
                now_ms = host.process.clock_ms()
                for name, bucket in host.process.quotas._book._buckets.items():
                    if bucket.is_in_use(now_ms):
                        limits[name] += bucket.limit
        for name, limit in limits.items():
            if self.quota is not None and limit > self.quota * 1.001:
                return f"gateways may use {limit} of {name} together, the quota is {self.quota}"
        return ""

    def _why_not_quiet(self) -> str:
        """A last record may be under way still."""
        for guest in self.guests:
            if guest.is_waiting:
                return f"{guest.name} waits for an answer"
        for key in self.partitions():
            end = self.world.checker.truth(key).end
            for host in self.world.hosts:
                partition = host.process.manager.registry.partitions.get(key) if host.kind == "n" else None
                if partition is not None and partition.log.log_end_offset != end:
                    return f"{partition.name} is being written: {partition.log.log_end_offset} of {end}"
        return ""


def _is_fine(response: Any) -> bool:
    for name in ("results", "added"):
        if any(result.code not in _FINE for result in getattr(response, name, ())):
            return False
    return not any(removed.error.code for removed in getattr(response, "removed", ()))
