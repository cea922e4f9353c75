"""The streaming reader: when to look, how far to go, what to hand out.

The rules of advancing are in `progress`; here are the calls that feed them. One reader
lives in the query's planner process for as long as the query runs, another one is made
to be pickled for the executors, so nothing here may be needed by `read`.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_penstock.epochs import find_cut
from pyspark_penstock.errors import DataLossError
from pyspark_penstock.gateway import (
    UNKNOWN_TOPIC_OR_PARTITION,
    GatewayClient,
    OffsetAnswer,
    Query,
    TopicInfo,
    TopicMissingError,
    select_topics,
)
from pyspark_penstock.group_commits import GroupCommits
from pyspark_penstock.options import EARLIEST, LATEST, SourceOptions
from pyspark_penstock.parts import restore
from pyspark_penstock.planning import (
    Offsets,
    Partition,
    cap_bytes,
    checked,
    ends,
    keys_of,
    resolve,
    settled_ends,
    tiled,
)
from pyspark_penstock.progress import Observed, Progress, advance, gone, unknown
from pyspark_penstock.questions import commit_group, epoch_ends
from pyspark_penstock.reader import RangePartition, range_partitions, read_partition
from pyspark_penstock.tiling import OffsetRange

_log = logging.getLogger("pyspark_penstock")

TOPICS_AGE_MAX_MS = 1_000
"""How old the list of topics and partitions may be: new partitions are found this late."""
REGRESSION_GRACE_MS = 10_000
"""How long a log may end below where it was read to: after a failover the new leader learns its high
watermark from its followers only some moments later."""
_REGRESSION_POLL_MS = 100


_LOOKS_MAX = 5
"""How often topics are listed anew at the start, while they go away under the look at their ends."""
_LOSSES_SHOWN_MAX = 20


@dataclass(slots=True)
class Looked:
    """Latest offsets at one look, and the leader epochs in which they were told."""

    latest: Offsets
    epochs: dict[Partition, int]
    gone: list[Partition] = field(default_factory=list)
    """Not there any more, though their topics were listed."""


class PenstockStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Micro-batches over all partitions that the options choose."""

    def __init__(self, options: SourceOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._initial: dict[str, Any] | None = None
        self._topics: dict[str, TopicInfo] = {}
        self._topics_at_s = float("-inf")
        self._frozen: Looked | None = None
        """With Trigger.AvailableNow: the latest offsets when the query started."""
        self._frozen_topics: dict[str, TopicInfo] | None = None
        """With it: the topics then."""
        self._settled: dict[Partition, tuple[int, int]] = {}
        """By partition: the leader epoch and the offsets for which it is known that nothing below was cut."""
        self._last_due_s = float("-inf")
        """When minOffsetsPerTrigger last let a micro-batch go; the first look after a start always does."""
        self._reported: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None
        """The last end offset of this reader: what it plans then was looked at a moment before."""
        self._turn = 0
        """Counts plans by bytes: whose turn it is where there is room for one batch."""
        self._losses: set[str] = set()
        """What was already said of data lost: a query that goes on would say it at every look."""
        self._missing: TopicMissingError | None = None
        """With failOnDataLoss=true: named topics that are not there. What was read of them is told first."""
        self._given_up: set[Partition] = set()
        """Partitions that ended below their position for long enough, and still do."""
        self._gateway: GatewayClient | None = None
        self._commits: GroupCommits | None = None
        self._committing: GatewayClient | None = None
        """A client of its own for these, for it is used beside this one's."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Executors need the schema and the options; the rest is the planner's."""
        return restore, ("stream", "PenstockStreamReader", self._options, self._schema)

    # -- called in the planner ----------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query starts. The answer is kept: Spark asks again before every first batch."""
        if self._initial is None:
            topics = self._not_after_the_freeze(self._topics_or_what_is_left(TOPICS_AGE_MAX_MS))
            offsets = resolve(
                self._client(),
                self._options.starting,
                keys_of(topics),
                name="starting",
                latest_when_no_match=self._options.latest_when_no_match,
                group=self._options.commit_group,
            )
            offsets = self._check_start(offsets)
            ids = {name: topic.topic_id for name, topic in topics.items()}
            self._initial = Progress(offsets, ids).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.offsets_per_trigger_max is not None:
            return ReadMaxRows(self._options.offsets_per_trigger_max)
        if self._options.offsets_per_trigger_min is not None:
            return ReadMinRows(self._options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The next end offset; `start` itself when there is nothing to do."""
        current = Progress.from_json(start)
        self._commit_progress(current)
        seen = self._observe(current)
        self._reported = Progress(seen.latest, seen.ids).to_json()
        step = advance(current, seen, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        self._lost(step.losses)
        if self._missing is not None:
            raise self._missing
        unchanged = step.news == 0 and (step.progress.to, step.progress.ids) == (current.to, current.ids)
        is_due = self._is_due(step.news, limit)
        if current.start is not None and (unchanged or not is_due):
            if self._frozen is not None and self._commits is not None:
                self._commits.settle()  # the query ends here, and takes its process with it
            return start
        following = self._named(current, self._within_bytes(step.progress))
        self._planned = following.to_json()
        return self._planned

    def _within_bytes(self, following: Progress) -> Progress:
        """maxBytesPerTrigger: never more than that, but for one batch. Goes with maxOffsetsPerTrigger."""
        self._turn += 1
        ends_now = {
            (item.topic, item.partition): item.end
            for item in cap_bytes(self._client(), self._options, following.ranges(), self._turn)
        }
        return replace(following, to=following.to | ends_now)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """What was latest at the last look, for the query's progress report."""
        return self._reported

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Freezes topics and their ends: the query stops there, however much is produced meanwhile."""
        for _ in range(_LOOKS_MAX):
            topics = self._frozen_topics = self._topics_to_freeze()
            self._frozen = self._look(keys_of(topics), {}, 0)
            if not self._frozen.gone:
                return

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What to read: by `end` alone (see `progress`)."""
        ranges = Progress.from_json(end).ranges()
        if end != self._planned:
            ranges = self._what_is_left(ranges)
        ranges = tiled(self._client(), self._options, ranges)
        return range_partitions(self._client(), ranges)

    def _what_is_left(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Of a micro-batch that another run of the query planned: retention may have taken records since."""
        wanted = [item for item in ranges if item.size > 0]
        queries = [Query(item.topic, item.partition, EARLIEST) for item in wanted]
        left, losses = [], []
        for item, answer in zip(wanted, self._client().list_offsets(queries), strict=True):
            # Whether a topic is gone, or made anew, the task makes sure of.
            is_same = not answer.code and answer.topic_id in (b"", item.topic_id)
            first = min(max(answer.offset, item.start), item.end) if is_same else item.start
            if first > item.start:
                name = f"{item.topic}-{item.partition}"
                losses.append(gone(name, item.start, first, f"the log now starts at {answer.offset}"))
            left.append(replace(item, start=first))
        self._lost(losses)
        return left

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the checkpoint holds the offsets."""

    def stop(self) -> None:
        """Lets the last commit come to its end. Channels belong to the process."""
        if self._commits is not None:
            self._commits.settle()

    def _commit_progress(self, current: Progress) -> None:
        """Spark asks for the next offset when everything up to this one is processed, and in its commit log."""
        if not self._options.commit_group or current.start is None:
            return
        if self._commits is None or self._committing is None:
            self._committing = GatewayClient.of(replace(self._options, remarks=()))
            self._commits = GroupCommits(partial(commit_group, self._committing, self._options.commit_group))
        self._committing.learned = self._client().learned  # nobody else tells it
        self._commits.offer(current.to, f"spark {current.query or '-'} {current.batch}")

    def _named(self, current: Progress, following: Progress) -> Progress:
        """The next position, with the query's name and the number of its micro-batch where a group shows them."""
        if not self._options.commit_group:
            return following
        return replace(following, query=current.query or uuid.uuid4().hex, batch=current.batch + 1)

    # -- called on executors ------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, RangePartition):
            return iter(())
        return read_partition(partition, self._options, self._schema)

    # -- what the cluster says ----------------------------------------------------------------

    def _client(self) -> GatewayClient:
        if self._gateway is None:
            self._gateway = GatewayClient.of(self._options)
        return self._gateway

    def _current_topics(self, age_max_ms: int) -> dict[str, TopicInfo]:
        now = time.monotonic()
        if (now - self._topics_at_s) * 1000 >= age_max_ms:
            self._topics = select_topics(self._client(), self._options)
            self._topics_at_s = now
        return self._topics

    def _known_topics(self) -> dict[str, TopicInfo]:
        """Topics now; a named one that is gone is left out: whether the query ends there, its position says."""
        try:
            return self._current_topics(TOPICS_AGE_MAX_MS)
        except TopicMissingError as error:
            self._topics = self._without(error)
            self._topics_at_s = float("-inf") if self._options.fail_on_data_loss else time.monotonic()
            return self._topics

    def _without(self, missing: TopicMissingError) -> dict[str, TopicInfo]:
        """The named topics that are there."""
        if self._options.fail_on_data_loss:
            self._missing = missing
        else:
            self._lost([str(missing)])
        return select_topics(self._client(), self._options, missing_ok=True)

    def _topics_or_what_is_left(self, age_max_ms: int) -> dict[str, TopicInfo]:
        """Topics at the start, where one that is not there may as well be misspelt: some must be left."""
        try:
            return self._current_topics(age_max_ms)
        except TopicMissingError as error:
            if self._options.fail_on_data_loss:
                raise
            topics = self._known_topics()
            if not topics:
                raise error from None
            return topics

    def _topics_to_freeze(self) -> dict[str, TopicInfo]:
        """As above; but how far a query has read that is to end for a missing one is not known here yet."""
        try:
            return self._topics_or_what_is_left(0)
        except TopicMissingError as error:
            if not self._options.fail_on_data_loss:
                raise
            return self._without(error)

    @property
    def _looked_at(self) -> dict[str, TopicInfo]:
        """The topics that offsets are of."""
        return self._topics if self._frozen_topics is None else self._frozen_topics

    def _not_after_the_freeze(self, topics: dict[str, TopicInfo]) -> dict[str, TopicInfo]:
        """A topic or partition that came behind it is the next run's, and one that went has no start."""
        frozen = self._frozen_topics
        if frozen is None:
            return topics
        return {
            name: frozen[name]
            for name, topic in topics.items()
            if name in frozen and frozen[name].topic_id == topic.topic_id
        }

    def _observe(self, current: Progress) -> Observed:
        if self._frozen is not None:
            topics, looked = self._looked_at, self._frozen
        else:
            topics = self._known_topics()
            keys = keys_of(topics)
            # Waiting a moment for news when there is none: idle queries ask all the time.
            waits = current.start is not None and all(key in current.to for key in keys)
            looked = self._look(keys, current.to, self._options.latest_wait_ms if waits else 0)
            if not keys and waits:
                time.sleep(self._options.latest_wait_ms / 1000)
        latest = dict(looked.latest)
        ids = {name: topic.topic_id for name, topic in topics.items()}
        new = unknown(current, ids, list(latest))
        earliest = self._there(new, EARLIEST)
        for key in set(new) - set(earliest):
            del latest[key]
        known = [key for key in latest if key not in earliest]
        self._given_up.difference_update([key for key in known if latest[key] >= current.to[key]])
        first = self._there([key for key in known if latest[key] != current.to[key]], EARLIEST)
        cuts = self._cuts(current, known, Looked(latest, looked.epochs))
        seen = Observed(ids, latest, earliest, first, looked.epochs, cuts)
        if any(latest[key] < current.to[key] for key in known if key not in cuts):
            seen = self._after_regression(current, seen)
        return seen

    def _look(self, keys: list[Partition], known: Offsets, wait_ms: int) -> Looked:
        """Latest offsets; with `wait_ms` once one is above what is known, or after that time."""
        queries = [Query(topic, part, LATEST, known.get((topic, part), 0)) for topic, part in keys]
        answers = self._client().list_offsets(queries, wait_ms)
        looked = Looked({}, {})
        for query, answer in zip(queries, answers, strict=True):
            key = (query.topic, query.partition)
            if self._is_gone(query.topic, answer):
                # Look again next time; till then a known one is as it was.
                looked.gone.append(key)
                if key in known:
                    looked.latest[key] = known[key]
                continue
            looked.latest[key] = checked(query, answer)
            if answer.leader_epoch >= 0:
                looked.epochs[key] = answer.leader_epoch
        return looked

    def _is_gone(self, topic: str, answer: OffsetAnswer) -> bool:
        """Deleted, or made anew, since the topics were listed."""
        other = bool(answer.topic_id) and answer.topic_id != self._looked_at[topic].topic_id
        if answer.code == UNKNOWN_TOPIC_OR_PARTITION or other:
            self._topics_at_s = float("-inf")
            return True
        return False

    def _there(self, keys: list[Partition], which: int) -> Offsets:
        """Earliest or latest offsets of those partitions that are still there."""
        queries = [Query(topic, part, which) for topic, part in keys]
        found: Offsets = {}
        for query, answer in zip(queries, self._client().list_offsets(queries), strict=True):
            if not self._is_gone(query.topic, answer):
                found[(query.topic, query.partition)] = checked(query, answer)
        return found

    def _cuts(self, current: Progress, known: list[Partition], looked: Looked) -> Offsets:
        """Known partitions with a later leader than the one that told their position, and a log that was cut."""
        suspects = {
            key: (looked.epochs[key], min(looked.latest[key], current.to[key]))
            for key in known
            if key in current.epochs and looked.epochs.get(key, -1) > current.epochs[key]
        }
        suspects = {key: seen for key, seen in suspects.items() if self._settled.get(key) != seen}
        if not suspects:
            return {}
        cuts: Offsets = {}
        told = epoch_ends(self._client(), {key: current.epochs[key] for key in suspects}) or {}
        for key, start in self._there(list(suspects), EARLIEST).items():
            if key in told:
                if told[key] < suspects[key][1]:
                    cuts[key] = told[key]
                else:
                    self._settled[key] = suspects[key]
                continue
            # A gateway of before does not tell: the batches do.
            first_batch = partial(self._client().first_batch, self._looked_at[key[0]], key[1])
            end, position, epoch = looked.latest[key], current.to[key], current.epochs[key]
            cut = find_cut(first_batch, start, end, position, epoch)
            if cut is None:
                self._settled[key] = suspects[key]
            else:
                cuts[key] = cut
        return cuts

    def _after_regression(self, current: Progress, seen: Observed) -> Observed:
        """Looks again for a while at partitions that end below where they were read to."""
        deadline = time.monotonic() + REGRESSION_GRACE_MS / 1000
        latest, epochs = dict(seen.latest), dict(seen.epochs)
        while True:
            short = [
                key
                for key, offset in current.to.items()
                if key not in seen.earliest and key not in seen.cuts and latest.get(key, offset) < offset
            ]
            if self._given_up.issuperset(short) or time.monotonic() >= deadline:
                self._given_up.update(short)
                return replace(seen, latest=latest, epochs=epochs)
            time.sleep(_REGRESSION_POLL_MS / 1000)
            again = self._look(short, {}, 0)
            now = again.latest
            # With AvailableNow nothing beyond the frozen end is taken; being back is enough.
            caps = {key: current.to[key] for key in short} if self._frozen is not None else now
            latest |= {key: min(offset, caps[key]) for key, offset in now.items()}
            epochs |= again.epochs  # another leader may tell now, and what it has written is of its epoch

    def _is_due(self, news: int, limit: ReadLimit) -> bool:
        """minOffsetsPerTrigger: wait for more, but not longer than maxTriggerDelay, and not at the end.

        The clock goes on as the connector's: a look with nothing new that comes late enough starts it anew.
        """
        least = self._options.offsets_per_trigger_min
        if least is None or isinstance(limit, ReadAllAvailable) or self._frozen is not None:
            return True
        now = time.monotonic()
        if news < least and (now - self._last_due_s) * 1000 < self._options.trigger_delay_max_ms:
            return False
        self._last_due_s = now
        return True

    def _check_start(self, offsets: Offsets) -> Offsets:
        """Offsets given by number must exist; with failOnDataLoss=false the nearest that does is taken."""
        if self._options.starting.kind not in ("offsets", "group"):
            return offsets
        first, last = ends(self._client(), list(offsets), EARLIEST), settled_ends(self._client(), offsets)
        for key, offset in offsets.items():
            if not first[key] <= offset <= last[key]:
                self._lost([f"{key[0]}-{key[1]}: start {offset} is outside {first[key]}..{last[key]}"])
        return {key: min(max(offset, first[key]), last[key]) for key, offset in offsets.items()}

    def _lost(self, texts: Sequence[str]) -> None:
        if texts and self._options.fail_on_data_loss:
            shown = "; ".join(texts[:_LOSSES_SHOWN_MAX])
            more = f"; and {len(texts) - _LOSSES_SHOWN_MAX} more" if len(texts) > _LOSSES_SHOWN_MAX else ""
            raise DataLossError(
                f'{shown}{more}; set option("failOnDataLoss", "false") to go on with what is left'
            )
        for text in texts:
            if text not in self._losses:
                self._losses.add(text)
                _log.warning("%s; going on without it, as failOnDataLoss=false says", text)
