"""A controller's files in all their work, for a recorder: journal, term and vote, snapshots, compaction.

Run as a program with power_cut.c preloaded. Arguments: the data directory, a seed, and `slow`
for a disk on which a snapshot is not done when the next is due. What is promised to others at
each moment is told by directories named `mark-...`, which the recorder sees between the other
calls.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pysyncobj.config import SERIALIZER_STATE

from penstock_controller.quorum.identity import PeerMemory
from penstock_controller.quorum.journal import DurableJournal
from penstock_controller.quorum.snapshot import SnapshotStore, start_thread
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import metadata_pb2 as pb

STEPS = 60
SNAPSHOT_EVERY = 12


def command(index: int, term: int) -> bytes:
    """What entry `index` of that term holds; over a sector long now and then, with zeros in it."""
    record = pb.MetadataRecord(
        gateway=pb.GatewayRecord(gateway_id=f"{index}.{term}\0" * (1 + index * 37 % 120))
    )
    return b"\0" + pb.MetadataCommand(base_version=index, records=[record]).SerializeToString()


def image() -> MetadataImage:
    """Something of some sectors."""
    records = [pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=b"c" * 16))]
    for number in range(40):
        topic_id = number.to_bytes(16, "big")
        records.append(pb.MetadataRecord(topic=pb.TopicRecord(topic_id=topic_id, name=f"t{number}")))
    return MetadataImage.from_records(records, 77)


class Script:
    """The work of one controller, in an order that the seed gives."""

    def __init__(self, directory: Path, seed: int, *, slow: bool) -> None:
        self.directory = directory
        self.slow = slow
        self.held: list[tuple[Callable[[], None], str]] = []
        """Snapshots that are begun and have not come to the disk yet."""
        self.dice = random.Random(seed)
        self.journal = DurableJournal(directory)
        self.store = SnapshotStore(directory, image, self._fail, spawn=self.spawn)
        self.term = 0
        self.index = 0
        self.synced = 0
        self.marks = 0

    def run(self) -> None:
        memory = PeerMemory(self.directory, 1, b"d" * 16)
        memory.mark_joined()
        self.elect()
        for step in range(STEPS):
            for _ in range(self.dice.randint(1, 4)):
                self.index += 1
                self.journal.add(command(self.index, self.term), self.index, self.term)
            if self.dice.random() < 0.15:
                # Another leader: what was not synced goes, and comes anew in its term.
                first = self.journal.entries[0][1]
                self.journal.deleteEntriesFrom(self.synced + 1 - first)
                self.index = self.synced
                self.elect()
                continue
            self.journal.sync()
            self.mark(f"acked-{self.synced + 1}-{self.index}-{self.term}")
            self.synced = self.index
            if step % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
                last = self.journal.entries[-1]
                self.store.serialize((None, last, self.journal.entries[-2], None), last[1])
                if step // SNAPSHOT_EVERY % 2:
                    self.release()
            self.compact()
        self.release()
        while any(thread.name == "raft-snapshot" for thread in threading.enumerate()):
            time.sleep(0.001)
        self.compact()

    def spawn(self, job: Callable[[], None], name: str) -> None:
        self.held.append((job, name))
        if not self.slow:
            self.release()

    def release(self) -> None:
        for job, name in self.held:
            start_thread(job, name)
        self.held.clear()

    def elect(self) -> None:
        self.term += 1
        self.journal.setCurrentTerm(self.term, str(self.term % 3))
        self.mark(f"term-{self.term}")

    def compact(self) -> None:
        """As PySyncObj does once the snapshot has its name: cut where *that* snapshot ends.

        On a slow disk a later one may have been asked for, and not begun, meanwhile.
        """
        state, last_index = self.store.checkSerializing()
        if state == SERIALIZER_STATE.SUCCESS and last_index is not None:
            self.journal.deleteEntriesTo(last_index - 1 - self.journal.entries[0][1])

    def mark(self, text: str) -> None:
        self.marks += 1
        (self.directory / f"mark-{self.marks}-{text}").mkdir()

    @staticmethod
    def _fail(error: BaseException) -> None:
        raise error


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir()
    Script(Path(sys.argv[1]), int(sys.argv[2]), slow="slow" in sys.argv[3:]).run()
