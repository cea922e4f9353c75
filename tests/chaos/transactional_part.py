"""The transactional load of a run: producers and two readers of a topic of their own, beside the ordinary load.

Rules: of the four producers of `CLIENTS` half are confluent-kafka and half aiokafka, one of each through the gateways
and one on the direct listeners; who wants others names them. After the heal each must commit again, and when all have
ended every last stable offset must reach its watermark, both by a deadline. A fatal error of a client fails the run:
nobody fences these, and no fault lasts as long as their transactions may.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Protocol

from confluent_kafka.admin import AdminClient

from chaos.checker import Verdict
from chaos.coordinators import Coordinators
from chaos.history import Polls, Status, TransactionalHistory
from chaos.load import Reader
from chaos.transaction_checker import check_transactions
from chaos.transactional_load import PAUSE_S, TransactionalClient
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.wire.groups import transaction_partition
from support.kafka import client_config
from support.transactions import is_decided
from support.waiting import wait_for

TOPIC = "chaos-transactions"
SERVED_TIMEOUT_S = 120.0
DECIDED_TIMEOUT_S = 120.0
CLIENTS = (
    ("confluent-kafka", "kafka"),
    ("aiokafka", "kafka"),
    ("confluent-kafka", "direct"),
    ("aiokafka", "direct"),
)
FIRST_CLIENT, FIRST_CLIENTS_READER, FIRST_READER, FIRST_LAST_READER, RAW_READER = 40, 50, 60, 70, 80


class Addresses(Protocol):
    """Where clients come in: `use` is `kafka`, by gateways, or `direct`."""

    def bootstrap(self, use: str = "kafka") -> str: ...
    def clients(self, use: str = "kafka") -> dict[str, str]: ...


class TransactionalPart:
    """What a run with transactions has beside."""

    def __init__(
        self,
        cluster: Addresses,
        partitions: int,
        clients: Sequence[tuple[str, str]] = CLIENTS,
        pause_s: float = PAUSE_S,
    ) -> None:
        """`clients`: by which library, and which way in; `pause_s` is between two transactions of one."""
        self._cluster = cluster
        self._partitions = partitions
        admin = AdminClient(client_config(cluster.bootstrap(), **cluster.clients()))
        self._coordinators = Coordinators(cluster, admin)
        self.history = TransactionalHistory()
        self.clients = [
            TransactionalClient(
                FIRST_CLIENT + number,
                by,
                cluster.bootstrap(use),
                self._reader(FIRST_CLIENTS_READER + number, use),
                TOPIC,
                partitions,
                pause_s,
            )
            for number, (by, use) in enumerate(clients)
        ]
        self._readers = [
            self._reader(FIRST_READER + number, use) for number, use in enumerate(("kafka", "direct"))
        ]
        self.decided_in_s = 0.0

    def start(self) -> None:
        for one in self._all():
            one.start()

    def wait_until_served(self, since_s: float, when: str) -> None:
        """Until each producer has committed something since."""
        for one in self.clients:
            wait_for(
                lambda one=one: one.has_committed_since(since_s),  # type: ignore[misc]
                f"{one.name} ({one.by}) commits {when}; it has heard {(one.fatal + one.aborts)[-3:]}",
                SERVED_TIMEOUT_S,
            )

    def finish(self) -> None:
        for one in self._all():
            one.finish()

    def move_coordinators(self) -> int:
        """Each transactional id gets another coordinator; how many partitions of `__transaction_state` moved."""
        count = len(self._coordinators.partitions(TRANSACTIONS_TOPIC))
        ours = {transaction_partition(one.name, count) for one in self.clients}
        for partition in sorted(ours):
            self._coordinators.move(TRANSACTIONS_TOPIC, partition)
        return len(ours)

    def read_back(self) -> None:
        """Once all producers have ended and all is healed: note what they did and what readers find."""
        begun_s = time.monotonic()
        wait_for(
            lambda: is_decided(self._cluster.bootstrap(), TOPIC, self._partitions),
            "every last stable offset at its watermark",
            DECIDED_TIMEOUT_S,
        )
        self.decided_in_s = time.monotonic() - begun_s
        history = self.history
        for one in self.clients:
            # Rows of one history, not of one client's sends.
            first = len(history.sends)
            history.sends.extend(one.sends)
            for transaction in one.transactions:
                transaction.rows = [first + row for row in transaction.rows]
                history.transactions.append(transaction)
        for reader in (*self._readers, *(one.reader for one in self.clients)):
            history.polls.extend(reader.polls)
        for number, use in enumerate(("kafka", "direct")):
            history.polls.extend(self._read_all(FIRST_LAST_READER + number, use, "read_committed"))
        history.raw.extend(self._read_all(RAW_READER, "kafka", "read_uncommitted"))

    def judge(self, replicas: Iterable[Polls]) -> Verdict:
        """`replicas`: what stands on each disk."""
        for on_disk in replicas:
            self.history.raw.extend(on_disk)
        return check_transactions(self.history)

    def figures(self) -> str:
        """For people."""
        outcomes = [one.outcome for one in self.history.transactions]
        gap_s = max(one.longest_gap_s() for one in self.clients)
        asked = sum(len(one.aborts) for one in self.clients)
        broken = sum(len(one.broken) for one in self.clients)
        return (
            f"transactions: {outcomes.count(Status.OK)} committed, {outcomes.count(Status.FAIL)} aborted, "
            f"{outcomes.count(Status.INFO)} unknown, {asked} aborts asked for by a client, "
            f"{broken} producers ended by their client, longest gap {gap_s:.2f} s, "
            f"all decided {self.decided_in_s:.2f} s after the last"
        )

    def fatal(self) -> list[str]:
        return [what for one in self.clients for what in one.fatal]

    # --- inside ------------------------------------------------------------------

    def _all(self) -> list[TransactionalClient | Reader]:
        return [*self.clients, *self._readers]

    def _reader(self, process: int, use: str, **more: str) -> Reader:
        settings = {"isolation.level": "read_committed", **self._cluster.clients(use), **more}
        return Reader(process, settings, TOPIC, self._partitions)

    def _read_all(self, process: int, use: str, isolation: str) -> Polls:
        reader = self._reader(process, use, **{"isolation.level": isolation, "enable.partition.eof": "true"})
        reader.read_until_told()
        return reader.polls
