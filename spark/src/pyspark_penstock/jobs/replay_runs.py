"""A replay that has a name: one that was killed goes on where it was, and writes no record twice.

What its slices are is written down once, before the first of them, and never changes: a topic grows meanwhile, and a
slice that were cut anew would have other offsets under the same number. How many of them are done is what the sink has
decided. So a run of that name is one thing, however often it is started, and none once all of it is written.

Without that note nobody knows what the slices were that the sink has: such a run is refused.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark_penstock.jobs.archive_files import put
from pyspark_penstock.jobs.frame import JobError, Offsets
from pyspark_penstock.jobs.slices import Ranges
from pyspark_penstock.jobs.writing import Checkpoint, Known, Target, sink_name
from pyspark_penstock.sink.calls import SinkCalls

_SLICES: Final = "slices.json"
_LOCK: Final = "lock"
_FORM: Final = 1
_MEND: Final = "give another --run, or say what that one was started with"


@dataclass(frozen=True, slots=True)
class Slice:
    """What is written as one unit."""

    ranges: Ranges
    due_s: float = 0.0
    """Since the replay's begin."""
    from_ms: int | None = None
    """Of a replay in time: the record time that is due when it begins."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All of a replay."""

    first: Offsets
    end: Offsets
    slices: tuple[Slice, ...]

    def first_from(self, number: int) -> Offsets:
        """Where that slice begins, and the others behind it."""
        found = dict(self.end)
        for item in reversed(self.slices[number:]):
            found |= {part: low for part, (low, _) in item.ranges.items()}
        return found

    def text(self) -> str:
        return json.dumps(
            {
                "form": _FORM,
                "from": self.first,
                "to": self.end,
                "slices": [
                    {"ranges": item.ranges, "due_s": item.due_s, "from_ms": item.from_ms}
                    for item in self.slices
                ],
            }
        )

    @classmethod
    def parse(cls, text: str, where: Path) -> Plan:
        """Raises JobError."""
        try:
            form = json.loads(text)
            if form["form"] != _FORM:
                raise ValueError(f"form {form['form']} is not known to this build")
            return cls(
                _offsets(form["from"]),
                _offsets(form["to"]),
                tuple(
                    Slice(
                        {int(part): (int(low), int(high)) for part, (low, high) in item["ranges"].items()},
                        float(item["due_s"]),
                        None if item["from_ms"] is None else int(item["from_ms"]),
                    )
                    for item in form["slices"]
                ),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise JobError(f"{where}: these are no slices of a replay ({error}); {_MEND}") from None


def _offsets(form: dict[str, Any]) -> Offsets:
    return {int(part): int(offset) for part, offset in form.items()}


@dataclass(frozen=True, slots=True)
class NamedRun:
    """Of `--run`."""

    name: str
    sink: str
    place: Checkpoint
    target: Target

    @classmethod
    def at(cls, name: str, checkpoint: str, source: Known, target: Target, told: dict[str, Any]) -> NamedRun:
        """`told`: what it was started with; no other may go on under its name. Raises PenstockError."""
        sink = sink_name("replay", source, target, name)
        told = {"job": "replay", "run": name, "topic_id": source.topic_id.hex(), **told}
        told["to_id"] = target.topic_id.hex()
        return cls(name, sink, Checkpoint.at(checkpoint, sink, told, mend=_MEND), target)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raises JobError while another one is at work under this name."""
        with (self.place.directory / _LOCK).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise JobError(
                    f"run {self.name!r} of this replay is at work already; wait for its end, or give another --run"
                ) from None
            yield

    def plan(self, cut: Callable[[], Plan]) -> tuple[Plan, int]:
        """All of the replay as its first start has cut it, and how many of its slices are done.

        Raises PenstockError.
        """
        done = self._decided()
        path = self.place.directory / _SLICES
        if path.exists():
            plan = Plan.parse(path.read_text(), path)
        elif done:
            raise JobError(
                f"{self.target.topic} has {done} slices of run {self.name!r}, and {self.place.directory} does not say "
                "which: name its directory with --checkpoint, or give another --run and a topic without them"
            )
        else:
            plan = cut()
            put(path, plan.text())
        return plan, done

    def _decided(self) -> int:
        options = self.target.cluster.options(self.target.topic)
        last = SinkCalls(options.gateways, options.credentials_file).last(self.sink)
        return 0 if last is None else last.epoch + 1
