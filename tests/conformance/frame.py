"""Kafka is the oracle: what a scenario, a client and a target are, and how outcomes are compared.

    make conformance                               # everything; ends with the matrix, writes docs/compatibility.md
    make conformance CONFORMANCE="--list"
    make conformance CONFORMANCE="--scenario group-static --client java confluent-kafka --target penstock-proxy"

**Scenario.** A plain function `(c: Client, t: Case) -> outcome`, registered with `@scenario(...)` in a module
of `conformance.scenarios`. It drives the client with the vocabulary of `conformance.client.Client` and nothing
else (so it is written once for all clients), and returns what a user saw as JSON: records, error names, states,
offsets. It makes its outcome such that two right brokers give equal ones: what is random (member ids,
timestamps, coordinators, the order of things without order) is left out, sorted or counted. Names come from
`t.topic()`, `t.name()`, `t.group()`; they differ from run to run and are put back to `~suffix` in the outcome.
It never asserts what Kafka does: Kafka says so.

**Client.** A subclass of `Client` (`conformance/clients/<name>.py`) turns the vocabulary into calls of one
Kafka client. Arguments and results are JSON values; bytes are strings of the characters U+0000 to U+00FF
(ISO-8859-1). An error of the broker or the client is raised as `ClientError(name)`, with Kafka's name of the
code where it has one. A call that the client cannot make raises `Unsupported(reason)`: the cell becomes n/a.
Outcomes are compared between targets for the same client, never between clients, so small differences between
clients need no smoothing.

**Process of its own.** The Python clients run in processes of their own, so that one that hangs can be ended,
and a consumer can be killed (`c.spawn()` gives a second client in another process; its `kill()` is SIGKILL).
`conformance.remote.Remote(command)` is a `Client` whose other end is a process that reads one JSON object per
line from its stdin and answers each with one line on its stdout, in order (`python -m conformance.remote
<client> <bootstrap>`):

    {"op": "poll", "args": {"name": "c1", "count": 3, "timeout_ms": 5000}}
    {"ok": [...]}   or   {"error": "TOPIC_ALREADY_EXISTS", "message": "..."}   or   {"unsupported": "why"}

The Java client (`conformance.java.driver`) has a JVM for the whole run, and one for each `spawn`.

**Target.** `conformance.targets` starts, when a scenario first needs it and once for the whole run: `kafka` (3
nodes of Apache Kafka 4.3.1, the oracle), `penstock-proxy` and `penstock-direct` (one cluster of 3 controllers,
3 nodes and a gateway, by its two listeners). Both have the same settings (`KAFKA_SETTINGS`,
`PENSTOCK_SETTINGS`): topics are not created by themselves, replication factor 3, group delays short. Scenarios
with `world="auto-create"` run on a pair of small clusters that do create topics, those with `world="secure"` on a pair
that decides by ACLs and where clients sign in (`conformance.secure_world`). Scenarios run side by side on
a shared cluster: they only touch what they named.

**Outcome.** `conformance.runner` runs scenario x client x target, each with a deadline (`seconds`), replaces
names, shortens long strings, and compares with Kafka's outcome for equality. Cells:

* `green`: equal.
* `red`: different (the diff is printed), a hang (the deadline passed) or an exception.
* `known`: different, for a reason that stands in `conformance.known`: of the scenario, or of every entry that differs.
* `n/a`: the client cannot do it, with the reason.
* `none`: the scenario itself did not come to an end on Kafka, so there is nothing to compare with; counts as
  red.

An error that a scenario lets through makes its cell red, and on Kafka `none`: one that is expected is caught
(`attempt`) and belongs to the outcome. What is red is run a second time, alone, before it counts.

**Recorded oracle.** `--record` keeps Kafka's outcomes in `conformance/oracle.json`; `test_conformance_fast.py`
(a part of `make test`) runs the scenarios marked `fast` against Penstock alone and compares with that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from conformance.client import Client, ClientError
from conformance.secure_world import Doors

Outcome = Any
"""What a user saw: JSON."""

POLL_INTERVAL_S = 0.1


class Case(Protocol):
    """One run: a scenario's view of its target. Preparation goes through the harness's own client."""

    target: str
    """Name of the target; only for the scenario's own notes, an outcome must not depend on it."""
    bootstrap: str

    @property
    def doors(self) -> Doors:
        """Where to sign in; of scenarios with `world="secure"`."""

    def name(self, suffix: str = "x") -> str:
        """A name that nobody else uses: of a topic that is not made yet, of a client."""

    def group(self, suffix: str = "g") -> str:
        """Name of a consumer group that nobody else uses."""

    def topic(self, suffix: str = "t", partitions: int = 1, **config: str) -> str:
        """A topic that is there and has leaders when this returns; `config` names have _ for the dots."""

    def ready(self, name: str, partitions: int = 1) -> None:
        """Wait until every node tells the leaders of a topic that the scenario has made."""

    def fill(self, topic: str, values: Sequence[str | None], partition: int = 0, **record: Any) -> None:
        """Records in a topic, acknowledged; `record` has what all of them share (key, headers, timestamp_ms)."""


Play = Callable[[Client, Case], Outcome]


@dataclass(frozen=True)
class Scenario:
    """A row of the matrix."""

    name: str
    section: str
    play: Play
    what: str
    seconds: float
    fast: bool
    clients: tuple[str, ...]
    """Only these; empty for all."""
    world: str
    """Which clusters: "plain", "auto-create" or "secure"."""
    alone: bool
    """Runs when nothing else does: what it makes slows down its neighbours."""


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    name: str,
    section: str,
    *,
    seconds: float = 60.0,
    fast: bool = False,
    clients: Sequence[str] = (),
    world: str = "plain",
    alone: bool = False,
) -> Callable[[Play], Play]:
    """Register a scenario; its docstring's first line is shown to people. `seconds` is when it counts as hanging."""

    def register(play: Play) -> Play:
        if name in SCENARIOS:
            raise ValueError(f"two scenarios are named {name}")
        what = (play.__doc__ or "").strip().partition("\n")[0]
        SCENARIOS[name] = Scenario(name, section, play, what, seconds, fast, tuple(clients), world, alone)
        return play

    return register


def attempt(call: Callable[[], Any]) -> Any:
    """What a call gives, or {"error": name} when it is refused."""
    try:
        return call()
    except ClientError as error:
        return {"error": error.name}


def until(look: Callable[[], Any], wanted: Callable[[Any], bool], seconds: float = 30.0) -> Any:
    """The first value of `look` that is wanted, else the last one when the time is over (it then shows in the
    outcome)."""
    deadline = time.monotonic() + seconds
    while True:
        value = look()
        if wanted(value) or time.monotonic() > deadline:
            return value
        time.sleep(POLL_INTERVAL_S)


@dataclass
class Cell:
    """What came of one scenario with one client on one target."""

    scenario: str
    client: str
    target: str
    status: str
    """green, red, known, n/a or none; "ran" before it is compared."""
    seconds: float = 0.0
    outcome: Outcome = None
    reason: str = ""
    diff: list[str] = field(default_factory=list)
