"""Java consumers as members of `support.groups`: they process, then commit, and can be killed."""

from __future__ import annotations

from typing import Any

from support.groups import SESSION_TIMEOUT_MS, GroupLedger, GroupMember, kept
from support.java import JavaDriver, JavaError, decode, shared_driver

POLL_MS = 200


class JavaMember(GroupMember):
    """With the classic protocol. `own` is a JVM for this member alone, which `die` kills; `driver` is one that others
    have as well, in the place of the one that all share."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        ledger: GroupLedger,
        *,
        own: JavaDriver | None = None,
        driver: JavaDriver | None = None,
        **config: Any,
    ) -> None:
        self._own = own
        self._driver = own or driver or shared_driver()
        self._dying = False
        super().__init__(bootstrap, topic, group, ledger, **config)

    def protocol(self) -> dict[str, str]:
        """Settings of the group protocol."""
        return {"session.timeout.ms": str(SESSION_TIMEOUT_MS), "heartbeat.interval.ms": "1000"}

    def die(self) -> None:
        """As kill -9 does it."""
        assert self._own is not None
        self._dying = True
        self._own.kill()
        self._thread.join(60)
        self.owned = set()

    def run(self) -> None:
        try:
            self._consume()
        except JavaError:
            if not self._dying:
                raise
        finally:
            if self._own is not None and not self._dying:
                self._own.close()

    def _consume(self) -> None:
        call = self._driver.call
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": "false",
            **self.protocol(),
            **self.config,
        }
        handle = call("consumer.open", config=config)
        call("consumer.subscribe", handle=handle, topics=[self.topic])
        positions: dict[int, int] = {}
        while self.going:
            for record in call("consumer.poll", handle=handle, timeout_ms=POLL_MS):
                self.ledger.process(record["partition"], record["offset"], decode(record["value"]) or b"")
                positions[record["partition"]] = record["offset"] + 1
                self.taken += 1
            self.owned = {p for _, p in call("consumer.assignment", handle=handle)}
            positions = kept(positions, self.owned)
            if positions and self._commit(handle, positions):
                positions = {}
        call("consumer.close", handle=handle)

    def _commit(self, handle: str, positions: dict[int, int]) -> bool:
        wanted = [[self.topic, p, offset] for p, offset in positions.items()]
        try:
            self._driver.call("consumer.commit", handle=handle, offsets=wanted)
        except JavaError as error:
            if self._dying or error.kind not in REBALANCING:
                raise
            return False
        self.ledger.commit(positions)
        return True


REBALANCING = frozenset(
    {"CommitFailedException", "RebalanceInProgressException", "RetriableCommitFailedException"}
)
"""What a commit says in the middle of a rebalance."""


class JavaCooperativeMember(JavaMember):
    def protocol(self) -> dict[str, str]:
        strategy = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
        return super().protocol() | {"partition.assignment.strategy": strategy}


class JavaModernMember(JavaMember):
    """With the consumer protocol (KIP-848)."""

    def protocol(self) -> dict[str, Any]:
        return {"group.protocol": "consumer"}
