"""Kafka Streams with `exactly_once_v2` while nodes, gateways and its instances get `kill -9` in turn.

`PENSTOCK_STREAMS_SECONDS` says for how long, `PENSTOCK_STREAMS_SEED` repeats what is random. `make conformance-java`
runs it for a minute, `make conformance-java STREAMS_SECONDS=600` for ten.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.java.ecosystem import Instance
from conformance.streams_load import DIFFERENCE_MS, GRACE_MS, Feed, Joined, Progress, Sided, Topics, join
from support.cluster import running_cluster, start_ready
from support.java import needs_java, only_in_conformance
from support.kafka import create_topic, read_all
from support.waiting import wait_for

STREAMS_S = float(os.environ.get("PENSTOCK_STREAMS_SECONDS") or 60)
LONG_S = 600.0
RATE_PER_S = 40.0
NODES = 3
GATEWAYS = 2
INSTANCES = 2
DEAD_FOR_S = (0.0, 8.0)
"""An instance comes back at once, or after the other one has taken over: its session ends after 6 s."""


def test_the_expected_join_has_each_pair_within_the_window_once() -> None:
    left = [Sided("a", "l0", 5_000), Sided("a", "l1", 5_000), Sided("b", "l2", 9_000), Sided("c", "l3", 0)]
    right = [
        Sided("a", "r0", 4_000),
        Sided("a", "r1", 3_999),
        Sided("a", "r2", 6_000),
        Sided("a", "r3", 6_001),
        Sided("b", "r4", 5_000),
    ]
    assert join(left, right, 1_000) == Counter(
        {
            Joined("a", "l0+r0", 5_000): 1,
            Joined("a", "l1+r0", 5_000): 1,
            Joined("a", "l0+r2", 6_000): 1,
            Joined("a", "l1+r2", 6_000): 1,
        }
    )


class Application:
    """Word count and join in some instances, of which each start has a log of its own."""

    def __init__(self, folder: Path, bootstrap: str, topics: Topics) -> None:
        self.started: list[Instance] = []
        self._folder = folder
        self._bootstrap = bootstrap
        self._topics = topics
        self._running = {number: self._start(number) for number in range(INSTANCES)}

    def check(self) -> None:
        """No instance has ended by itself, and no log, those of the dead ones included, tells of a fatal error."""
        for instance in self.started:
            instance.check(alive=instance in self._running.values())

    def kill(self, number: int, dead_for_s: float) -> None:
        """SIGKILL, and another one with the same state folder after this time."""
        self._running.pop(number).kill()
        time.sleep(dead_for_s)
        self._running[number] = self._start(number)

    def close(self) -> None:
        for instance in self._running.values():
            instance.kill()

    def _start(self, number: int) -> Instance:
        topics = self._topics
        instance = Instance(
            self._folder,
            f"streams-{number}-{len(self.started)}",
            "WordCount",
            *(self._bootstrap, "eos", str(self._folder / f"state-{number}")),
            *(topics.lines, topics.counts, "exactly_once_v2"),
            *(topics.left, topics.right, topics.joined, str(DIFFERENCE_MS), str(GRACE_MS)),
        )
        self.started.append(instance)
        return instance


def committed(bootstrap: str, topic: str) -> Iterator[tuple[int, tuple[str, str, int]]]:
    """Partition, key, value and time of what a reader of committed records finds, in each partition's order."""
    found = read_all(bootstrap, topic, timeout_s=LONG_S, **{"isolation.level": "read_committed"})
    for record in sorted(found, key=lambda r: (r.partition, r.offset)):
        yield record.partition, ((record.key or b"").decode(), record.value.decode(), record.timestamp_ms)


def check_counts(bootstrap: str, topic: str, wanted: Counter[str]) -> int:
    """Each word's last count is right, and no count of it is told twice or after a later one. How many were told."""
    newest: dict[str, int] = {}
    told = 0
    for partition, (word, count, _) in committed(bootstrap, topic):
        assert int(count) > newest.get(word, 0), f"{word} in {partition}: {count} after {newest[word]}"
        newest[word] = int(count)
        told += 1
    assert newest == dict(wanted)
    return told


@pytest.mark.cluster
@pytest.mark.slow
@pytest.mark.timeout(STREAMS_S + 3000)
@needs_java
@only_in_conformance
def test_streams_counts_and_joins_exactly_once_whoever_is_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_STREAMS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"PENSTOCK_STREAMS_SEED={seed}")
    rng = random.Random(seed)
    topics = Topics("eos-lines", "eos-left", "eos-right", "eos-counts", "eos-joined")
    kills: Counter[str] = Counter()
    with running_cluster(
        tmp_path / "cluster", controllers=1, nodes=NODES, gateways=GATEWAYS, steady=True
    ) as cluster:
        bootstrap = cluster.bootstrap
        for topic, partitions in ((topics.lines, 4), (topics.left, 4), (topics.right, 4), (topics.counts, 2)):
            create_topic(bootstrap, topic, partitions)
        create_topic(bootstrap, topics.joined, 2)
        progress = Progress(bootstrap, topics.counts, topics.joined)
        begun = time.monotonic()

        def goes_on() -> None:
            """Until more is committed of both than there was."""
            before = progress.look()

            def more() -> bool:
                application.check()
                return all(progress.look()[topic] > before[topic] for topic in (topics.counts, topics.joined))

            wait_for(more, "counts and pairs are committed", LONG_S)

        def kill(victim: str) -> None:
            if victim == "instance":
                number, dead_for_s = rng.randrange(INSTANCES), rng.choice(DEAD_FOR_S)
                print(
                    f"{time.monotonic() - begun:.1f} s: kill instance {number}, dead for {dead_for_s:.0f} s"
                )
                application.kill(number, dead_for_s)
                return
            name = f"{victim}-{rng.randint(1, NODES if victim == 'node' else GATEWAYS)}"
            print(f"{time.monotonic() - begun:.1f} s: kill {name}")
            cluster.kill(name)
            start_ready(cluster, name)

        application = Application(tmp_path, bootstrap, topics)
        try:
            with Feed(bootstrap, topics, random.Random(seed + 1), RATE_PER_S) as feed:
                goes_on()
                begun = time.monotonic()
                while time.monotonic() - begun < STREAMS_S:
                    for victim in rng.sample(["instance", "node", "gateway"], 3):
                        time.sleep(rng.uniform(0, 4))
                        application.check()
                        kill(victim)
                        kills[victim] += 1
                        # Most kills come while it works, some while it is still busy with the one before.
                        if rng.random() < 0.7:
                            goes_on()
                goes_on()
            pairs = join(feed.left, feed.right, DIFFERENCE_MS)
            expected = {word: str(count) for word, count in feed.words.items()}
            joined = topics.joined
            wait_for(lambda: progress.look()[joined] >= pairs.total(), "all pairs are there", LONG_S)
            wait_for(
                lambda: progress.look() and progress.newest[topics.counts] == expected,
                "all is counted",
                LONG_S,
            )
            application.check()
        finally:
            application.close()
            progress.close()
        told = check_counts(bootstrap, topics.counts, feed.words)
        found = Counter(Joined(*record) for _, record in committed(bootstrap, topics.joined))
        doubled = [record for record, count in (found - pairs).items() if record in pairs]
        assert not doubled, f"more than once: {doubled[:5]}"
        assert not found - pairs, f"nobody's pairs: {list(found - pairs)[:5]}"
        assert not pairs - found, f"missing: {list(pairs - found)[:5]}"
    print(
        f"{kills.total()} kills ({dict(kills)}) in {STREAMS_S:.0f} s: {feed.words.total()} words counted by {told} "
        f"counts, {len(feed.left)} and {len(feed.right)} records joined to {pairs.total()} pairs"
    )
