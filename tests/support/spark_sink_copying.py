"""A topic that several drivers of Spark write, one after another or beside one another: who is held where, what is open
then, and what a reader of committed records finds in the end."""

from __future__ import annotations

import io
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.cli import transaction_wire
from penstock.cli.main import run
from penstock_core.topics import TRANSACTIONS_TOPIC
from penstock_kafka.wire.groups import transaction_partition
from support.cluster import wait_until_ready
from support.kafka import client_config, create_topic, describe, read_all
from support.spark_sink_runs import Run, holds_of
from support.waiting import wait_for

if TYPE_CHECKING:
    from penstock.local.cluster import LocalCluster
    from support.kafka import Record

WAIT_S = 900.0
OPEN_AT_MOST_S = 30.0
STAGING_TIMEOUT_S = 20.0
SOURCE = "source"
COUNT = 24_000
PER_TRIGGER = 4_000
BATCHES = COUNT // PER_TRIGGER
RUNS_MAX = 8
GATES = BATCHES + 4
"""Shares of a micro-batch are rounded: there may be one more."""

STAGE_ENDED = "it was open for longer than stagingTimeoutMs"
"""In last lines of a run that its user starts again, on a machine where a micro-batch takes longer than 20 s."""


class TooSlow(Exception):
    """A stage ended by its timeout before the test was there: on this machine nothing was struck."""


class Copying:
    """Raises AssertionError from whatever does not hold."""

    def __init__(
        self, cluster: LocalCluster, master: str, directory: Path, name: str, dice: random.Random
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.sink = f"sink-{name}"
        self.dice = dice
        self.driver: Run | None = None
        """Who writes now, as long as there is one of them."""
        self._master = master
        self._directory = directory
        self._runs: list[Run] = []
        self._given: list[dict[str, Any]] = []
        """What each of them was started with."""
        self._holds: list[tuple[str, int]] = []
        self._is_gated = False
        self.again = 0
        """Runs that were started again since the machine was too slow."""
        self.struck: list[str] = []
        """What was done to whom, for whoever reads what a test says."""
        self.hits_before = 0
        create_topic(cluster.bootstrap, name, 3, 3)

    # -- drivers ----------------------------------------------------------------------------

    def hold(self, *points: str, batch: int | None = None, gated: bool = True) -> None:
        """Of runs from now on: at each point, in that micro-batch or in every one. `gated`: none begins by itself."""
        batches = range(GATES) if batch is None else [batch]
        self._holds = [(point, number) for point in points for number in batches]
        self._is_gated = gated

    def start(self, *, cores: int = 4, tasks: int = 0, checkpoint: str = "checkpoint") -> Run:
        """`cores`: of 4 on two hosts, so that two drivers have room beside each other with 2."""
        last = self._runs[-1].tasks if self._runs else 0
        made = Run(
            self.cluster.gateway,
            self._directory / f"run-{len(self._runs)}",
            source=SOURCE,
            topic=self.name,
            checkpoint=self._directory / checkpoint,
            sink=self.sink,
            # Another number than the last one's: the next driver has other partitions for the same rows.
            tasks=tasks or self.dice.choice([n for n in (2, 3, 4, 5) if n != last]),
            per_trigger=PER_TRIGGER,
            master=self._master,
            faults=holds_of(self._directory, len(self._runs), self._holds, gated=self._is_gated),
            cores=cores,
        )
        self._runs.append(made)
        self._given.append({"cores": cores, "tasks": tasks, "checkpoint": checkpoint})
        self.driver = made
        return made

    def finish(self) -> None:
        """The driver that writes copies all that there is, and is held nowhere any more."""
        for point, batch in self._holds:
            self.go(point, batch)
        for batch in range(GATES):
            (self._directory / f"gate-{batch}").touch()
        self.wait_for_end()

    def wait_for_end(self) -> None:
        """The driver that writes has copied all that there is."""
        while True:
            assert self.driver is not None
            if self.driver.wait() == 0:
                return
            self._start_again(self.driver)

    def end(self) -> None:
        for each in self._runs:
            each.kill()

    def check_slow(self, ended: Run) -> None:
        """It has failed for no other reason than that the machine is too slow."""
        said = ended.last_line()
        slow_s = time.monotonic() - ended.opened_s
        assert STAGE_ENDED in said, ended.said()
        assert slow_s >= STAGING_TIMEOUT_S, f"after {slow_s:.1f} s: {ended.said()}"

    def _start_again(self, ended: Run) -> None:
        self.check_slow(ended)
        self.again += 1
        assert self.again < RUNS_MAX, ended.said()
        self.start(**self._given[self._runs.index(ended)])

    # -- holds ------------------------------------------------------------------------------

    def open_gate(self, batch: int) -> None:
        for each in self._runs:
            each.opened_s = time.monotonic()
        (self._directory / f"gate-{batch}").touch()

    def wait_at_gate(self, batch: int) -> None:
        """A task of the micro-batch would begin: what is timed then is the micro-batch, and not the start of Spark."""
        self._wait_for(f"waits-{batch}", lambda: self.waits(batch, len(self._runs) - 1))

    def reached(self, point: str, batch: int) -> dict[str, int]:
        """Who is held there."""
        path = self._directory / f"reached-{point}-{batch}"
        self._wait_for(path.name, path.exists)
        found: dict[str, int] = json.loads(path.read_text())
        return found

    def _wait_for(self, what: str, there: Callable[[], bool]) -> None:
        """A driver that the machine was too slow for is started again meanwhile."""

        def there_or_again() -> bool:
            assert self.driver is not None
            if there():
                return True
            if self.driver.has_ended():
                assert self.driver.wait(), f"{what} was passed by: {self.driver.said()}"
                self._start_again(self.driver)
            return False

        wait_for(there_or_again, f"{what} in {self._directory}", WAIT_S)

    def waits(self, batch: int, number: int) -> bool:
        """Whether a task of the so manieth run would begin, were there no gate."""
        return (self._directory / f"waits-{batch}-{number}").exists()

    def go(self, point: str, batch: int) -> None:
        (self._directory / f"go-{point}-{batch}").touch()

    # -- the cluster ------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything runs, is in sync, and is led by who is to lead it, so that it stays so until the strike."""
        wait_until_ready(self.cluster)

        def settled() -> bool:
            places = [
                place
                for topic in (self.name, TRANSACTIONS_TOPIC)
                for place in describe(self.cluster.bootstrap, topic).values()
            ]
            return all(
                sorted(place.isrs) == sorted(place.replicas) and place.leader == place.replicas[0]
                for place in places
            )

        wait_for(settled, "all replicas in sync, and their first ones leaders", WAIT_S)

    def coordinator(self) -> str:
        places = describe(self.cluster.bootstrap, TRANSACTIONS_TOPIC)
        return f"node-{places[transaction_partition(self.sink, len(places))].leader}"

    def leader(self) -> str:
        """Of a partition that is written, and not the coordinator."""
        leaders = {f"node-{place.leader}" for place in describe(self.cluster.bootstrap, self.name).values()}
        others = sorted(leaders - {self.coordinator()})
        assert others, leaders
        return self.dice.choice(others)

    # -- what is open -----------------------------------------------------------------------

    def said(self, *words: str) -> Any:
        """What a command says with --json; None when it has failed."""
        out = io.StringIO()
        with redirect_stdout(out):
            code = run([*words, "--json"])
        return json.loads(out.getvalue()) if code == 0 else None

    def described(self) -> Any:
        """`penstock spark sink describe`."""
        return self.said("spark", "sink", "describe", self.sink, "--gateway", self.cluster.gateway)

    def stages(self, batch: int) -> list[Any]:
        """Those of a micro-batch that are open, as the sink's coordinator tells."""
        found = self.described()
        return [] if found is None else [stage for stage in found["open"] if stage["epoch"] == batch]

    def check_open(self, batch: int, attempts: list[tuple[int, int]]) -> None:
        """At a strike: these attempts' stages are open, and rows of each are acknowledged.

        Raises TooSlow where they have ended since their time was up.
        """
        for partition, attempt in attempts:
            prefix = f"{self.sink}-{partition}-{attempt}-"
            stages = [each for each in self.stages(batch) if each["transactional_id"].startswith(prefix)]
            self._unless_slow(len(stages) == 1, f"{prefix} has {stages} open, in micro-batch {batch}")
            self._check_acknowledged(stages[0])

    def check_open_in_number(self, batch: int, least: int) -> None:
        """Likewise: so many stages are open, and rows of each are acknowledged."""
        stages = self.stages(batch)
        self._unless_slow(len(stages) >= least, f"{stages} are open, in micro-batch {batch}, and not {least}")
        for stage in stages:
            self._check_acknowledged(stage)

    def check_not_begun(self, batch: int, partition: int, attempt: int) -> None:
        prefix = f"{self.sink}-{partition}-{attempt}-"
        assert not [each for each in self.stages(batch) if each["transactional_id"].startswith(prefix)]

    def check_decided(self, batch: int) -> None:
        """The sink has the micro-batch, and Spark has not written that down."""
        found = self.described()
        assert found is not None
        assert found["epoch"] == batch
        assert not (self._directory / "checkpoint" / "commits" / str(batch)).exists()

    def _check_acknowledged(self, stage: Any) -> None:
        """Leaders know its producer's transaction, and the high watermark has passed where it begins."""
        wire = transaction_wire.read_cluster(self.cluster.bootstrap, self.name)
        places = sorted(wire.leaders)

        def acknowledged() -> bool:
            found, _ = transaction_wire.open_producers(wire, places)
            ends = self._ends()
            if any(
                ends.get(each.partition, 0) > each.start_offset
                for each in found
                if (each.producer_id, each.producer_epoch) == (stage["producer_id"], stage["producer_epoch"])
            ):
                return True
            if self._is_slow():
                raise TooSlow(stage["transactional_id"])
            return False

        wait_for(acknowledged, f"rows of {stage['transactional_id']} are acknowledged")

    def _ends(self) -> dict[int, int]:
        """High watermarks."""
        admin = AdminClient(client_config(self.cluster.bootstrap))
        latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        found = admin.list_offsets({TopicPartition(self.name, number): latest for number in range(3)})
        try:
            return {place.partition: int(one.result(30).offset) for place, one in found.items()}
        except KafkaException:
            return {}  # a leader is on its way; it is asked again

    def _unless_slow(self, is_so: bool, what: str) -> None:
        if is_so:
            return
        if self._is_slow():
            raise TooSlow(what)
        raise AssertionError(what)

    def _is_slow(self) -> bool:
        assert self.driver is not None
        return time.monotonic() - self.driver.opened_s >= STAGING_TIMEOUT_S

    # -- the end ----------------------------------------------------------------------------

    def check(self) -> None:
        """Each row once, nothing open, and the cluster's entry says what the checkpoint and the topic say."""
        wait_for(lambda: self.transactions_open() == [], "no transaction is open", OPEN_AT_MOST_S)
        source = read_all(self.cluster.bootstrap, SOURCE, WAIT_S)
        found = read_all(self.cluster.bootstrap, self.name, WAIT_S, **{"isolation.level": "read_committed"})
        counted = Counter(record.value for record in found)
        assert sum(counted.values()) == COUNT
        assert counted == Counter(record.value for record in source)
        self._check_described(source, found)

    def transactions_open(self) -> list[str]:
        """`penstock transaction list`: what of this sink is not ended."""
        listed = self.said("transaction", "list", "--bootstrap", self.cluster.bootstrap)
        assert listed is not None
        mine = [
            each for each in listed["transactions"] if each["transactional_id"].startswith(f"{self.sink}-")
        ]
        assert mine, listed
        return [
            f"{each['transactional_id']} {each['state']}"
            for each in mine
            if each["state"] not in ("CompleteCommit", "CompleteAbort", "Empty")
        ]

    def _check_described(self, source: list[Record], found: list[Record]) -> None:
        """It agrees with the checkpoint, and tells of as many rows as its last micro-batch has in each partition."""
        checkpoint = self._directory / "checkpoint"
        committed = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        said = self.described()
        assert (said["query_id"], said["epoch"], said["state"], said["open"]) == (
            query,
            committed,
            "done",
            [],
        )
        planned = json.loads((checkpoint / "offsets" / str(committed)).read_text().splitlines()[-1])
        begin, end = planned["from"][SOURCE], planned["to"][SOURCE]
        last = {
            record.value
            for record in source
            if begin[str(record.partition)] <= record.offset < end[str(record.partition)]
        }
        assert last
        assert {(each["topic"], each["partition"]): each["rows"] for each in said["rows"]} == Counter(
            (self.name, record.partition) for record in found if record.value in last
        )
