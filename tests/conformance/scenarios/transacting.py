"""Transactions as an application sees them: each client's own producers, consumers and admin calls."""

from __future__ import annotations

from typing import Any

from conformance.client import Client, Record
from conformance.frame import Case, Outcome, attempt, scenario, until
from conformance.scenarios.data import AT_MS

SECTION = "Transactions by client libraries"
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "java", "java-3.9", "franz-go")
"""Of both generations: for Java 4.x and franz-go the leader adds a partition, the others add it themselves."""
LISTING = ("kafka-python", "java", "java-3.9", "franz-go")
"""Have words for transactions and producers in their admin clients."""
QUIET_MS = 1_500
"""How long a reader waits before it says that there is no more."""
READ_MS = 20_000


def _records(*values: str, partition: int = 0, **more: Any) -> list[Record]:
    return [{"value": value, "partition": partition, **more} for value in values]


def _open(c: Client, t: Case, name: str, **settings: Any) -> None:
    """A producer with the id of its name, ready to begin."""
    c.open_producer(name, {"transactional_id": t.name(name), **settings})
    c.init_transactions(name)


def _commit(c: Client, name: str, topic: str, *values: str, partition: int = 0, **more: Any) -> None:
    c.begin(name)
    c.send(name, topic, _records(*values, partition=partition, **more))
    c.commit_transaction(name)


def _abort(c: Client, name: str, topic: str, *values: str, partition: int = 0, **more: Any) -> None:
    c.begin(name)
    c.send(name, topic, _records(*values, partition=partition, **more))
    c.abort_transaction(name)


def _read(c: Client, topic: str, count: int, isolation: str, partition: int = 0) -> list[list[Any]]:
    """[offset, value] of so many records from the start; 0: of what there is."""
    c.open_consumer("reader", {"reset": "earliest", "isolation": isolation})
    c.assign("reader", [[topic, partition, "beginning"]])
    found = c.poll("reader", count, READ_MS if count else QUIET_MS)
    c.close_consumer("reader")
    return [[record["offset"], record["value"]] for record in found]


def _ends(c: Client, topic: str, partition: int = 0) -> dict[str, list[int]]:
    """[first offset, end] as a consumer of each isolation level is told."""
    found = {}
    for isolation in ("read_uncommitted", "read_committed"):
        c.open_consumer("ends", {"reset": "earliest", "isolation": isolation})
        found[isolation] = c.watermarks("ends", topic, partition)
        c.close_consumer("ends")
    return found


def _settled(c: Client, topic: str, partition: int = 0) -> dict[str, list[int]]:
    """The ends once no transaction is open: markers are written after the client has its answer."""

    def closed(ends: dict[str, list[int]]) -> bool:
        return ends["read_committed"] == ends["read_uncommitted"]

    return dict(until(lambda: _ends(c, topic, partition), closed))


@scenario("txn-commit", SECTION, clients=CLIENTS, fast=True)
def commit(c: Client, t: Case) -> Outcome:
    """what is committed is read, and not before; what is not committed yet holds back the end"""
    topic = t.topic()
    _open(c, t, "p")
    c.begin("p")
    sent = c.send("p", topic, _records("a", "b", "c"))
    before = [_read(c, topic, 3, "read_uncommitted"), _read(c, topic, 0, "read_committed"), _ends(c, topic)]
    c.commit_transaction("p")
    after = [_read(c, topic, 3, "read_committed"), _settled(c, topic)]
    _commit(c, "p", topic, "d")
    return [sent, before, after, _read(c, topic, 4, "read_committed"), _settled(c, topic)]


@scenario("txn-abort", SECTION, clients=CLIENTS, fast=True)
def abort(c: Client, t: Case) -> Outcome:
    """what is aborted is passed over, and the same producer goes on"""
    topic = t.topic()
    _open(c, t, "p")
    _abort(c, "p", topic, "a", "b")
    aborted = [
        _settled(c, topic),
        _read(c, topic, 0, "read_committed"),
        _read(c, topic, 2, "read_uncommitted"),
    ]
    _commit(c, "p", topic, "c")
    _abort(c, "p", topic, "d")
    _commit(c, "p", topic, "e")
    return [aborted, _settled(c, topic), _read(c, topic, 2, "read_committed")]


@scenario("txn-empty", SECTION, clients=CLIENTS)
def empty(c: Client, t: Case) -> Outcome:
    """transactions without a record, committed and aborted, leave nothing behind"""
    topic = t.topic()
    _open(c, t, "p")
    for end in (c.commit_transaction, c.abort_transaction, c.commit_transaction):
        c.begin("p")
        end("p")
    nothing = _ends(c, topic)
    _commit(c, "p", topic, "a")
    for end in (c.abort_transaction, c.commit_transaction):
        c.begin("p")
        end("p")
    _commit(c, "p", topic, "b")
    return [nothing, _read(c, topic, 2, "read_committed"), _settled(c, topic)]


@scenario("txn-many-partitions", SECTION, clients=CLIENTS, seconds=120)
def many_partitions(c: Client, t: Case) -> Outcome:
    """24 partitions on all nodes in one transaction, committed, aborted, committed"""
    topic = t.topic(partitions=24)
    _open(c, t, "p")
    for turn, end in enumerate((c.commit_transaction, c.abort_transaction, c.commit_transaction)):
        c.begin("p")
        c.send("p", topic, [{"value": f"{turn}-{p}", "partition": p} for p in range(24)])
        end("p")
    c.open_consumer("c", {"reset": "earliest", "isolation": "read_committed"})
    c.assign("c", [[topic, p, "beginning"] for p in range(24)])
    read = c.poll("c", 48, 30_000)
    return sorted([record["partition"], record["offset"], record["value"]] for record in read)


@scenario("txn-two-topics", SECTION, clients=CLIENTS)
def two_topics(c: Client, t: Case) -> Outcome:
    """partitions of two topics, some of them first written to late in a transaction"""
    first, second = t.topic("one", partitions=2), t.topic("two", partitions=2)
    _open(c, t, "p")
    c.begin("p")
    sent = [c.send("p", first, _records("a"))]
    sent.append(c.send("p", second, _records("b", partition=1)))
    sent.append(c.send("p", first, _records("c", partition=1) + _records("d")))
    c.commit_transaction("p")
    places = ((first, 0, 2), (first, 1, 1), (second, 1, 1))
    return [sent, [_read(c, topic, n, "read_committed", p) for topic, p, n in places], _ends(c, second)]


@scenario("txn-fenced", SECTION, clients=CLIENTS, seconds=120, fast=True)
def fenced(c: Client, t: Case) -> Outcome:
    """a second producer with the id aborts what the first has open, and the first is told that it is fenced"""
    topic = t.topic()
    _open(c, t, "p")
    c.begin("p")
    c.send("p", topic, _records("a"))
    c.open_producer("second", {"transactional_id": t.name("p")})
    c.init_transactions("second")
    aborted = _settled(c, topic)
    told = attempt(lambda: c.commit_transaction("p"))
    _commit(c, "second", topic, "b")
    return [aborted, told, _read(c, topic, 1, "read_committed"), _settled(c, topic)]


@scenario("txn-fenced-idle", SECTION, clients=CLIENTS, seconds=120)
def fenced_idle(c: Client, t: Case) -> Outcome:
    """a producer that is fenced between two transactions is told so when it sends"""
    topic = t.topic()
    _open(c, t, "p")
    _commit(c, "p", topic, "a")
    c.open_producer("second", {"transactional_id": t.name("p")})
    c.init_transactions("second")
    c.begin("p")
    sent = attempt(lambda: c.send("p", topic, _records("b")))
    committed = attempt(lambda: c.commit_transaction("p"))
    _commit(c, "second", topic, "c")
    return [sent, committed, _read(c, topic, 2, "read_committed"), _settled(c, topic)]


@scenario("txn-killed", SECTION, clients=CLIENTS, seconds=120)
def killed(c: Client, t: Case) -> Outcome:
    """who comes with the id of a producer that was killed aborts what that had open"""
    topic = t.topic()
    other = c.spawn()
    other.open_producer("p", {"transactional_id": t.name("p")})
    other.init_transactions("p")
    other.begin("p")
    other.send("p", topic, _records("a"))
    other.kill()
    opened = _ends(c, topic)
    _open(c, t, "p")
    _commit(c, "p", topic, "b")
    return [opened, _read(c, topic, 1, "read_committed"), _settled(c, topic)]


@scenario("txn-timeout", SECTION, clients=CLIENTS, seconds=120)
def timeout(c: Client, t: Case) -> Outcome:
    """a transaction that takes too long is aborted; its producer is told, and a new one goes on"""
    topic = t.topic()
    _open(c, t, "p", transaction_timeout_ms=2_000)
    c.begin("p")
    c.send("p", topic, _records("a"))
    aborted = _settled(c, topic)
    told = attempt(lambda: c.commit_transaction("p"))
    attempt(lambda: c.close_producer("p"))
    c.open_producer("again", {"transactional_id": t.name("p")})
    c.init_transactions("again")
    _commit(c, "again", topic, "b")
    return [aborted, told, _read(c, topic, 1, "read_committed"), _settled(c, topic)]


@scenario("txn-timeout-refused", SECTION, clients=CLIENTS)
def timeout_refused(c: Client, t: Case) -> Outcome:
    """a timeout above transaction.max.timeout.ms is refused"""
    return attempt(lambda: _open(c, t, "p", transaction_timeout_ms=900_001))


@scenario("txn-offsets", SECTION, clients=CLIENTS, seconds=120)
def offsets(c: Client, t: Case) -> Outcome:
    """offsets in a transaction count when it is committed, and not when it is aborted"""
    source, sink, group = t.topic("in"), t.topic("out"), t.group()
    t.fill(source, [str(n) for n in range(6)])
    c.open_consumer("c", {"group": group, "reset": "earliest", "isolation": "read_committed"})
    c.subscribe("c", [source])
    read = [record["value"] for record in c.poll("c", 3, READ_MS)]
    _open(c, t, "p")
    seen = []
    for end, offset in ((c.abort_transaction, 3), (c.commit_transaction, 3), (c.abort_transaction, 5)):
        c.begin("p")
        c.send("p", sink, _records(f"up to {offset}"))
        c.send_offsets("p", "c", [[source, 0, offset]])
        end("p")
        # Put in place by a marker, which is written after the client has its answer.
        wanted = offset if end == c.commit_transaction else None
        look = lambda: c.committed("c", [[source, 0]])  # noqa: E731
        seen.append(until(look, lambda found, o=wanted: o in (None, found[0][2])))  # type: ignore[misc]
    return [read, seen, _read(c, sink, 1, "read_committed"), _settled(c, sink)]


@scenario("txn-copy", SECTION, clients=CLIENTS, seconds=180)
def copied(c: Client, t: Case) -> Outcome:
    """consume, transform, produce, every third transaction aborted: each record once, in order; the group's place"""
    source, sink = t.topic("in", partitions=3), t.topic("out", partitions=3)
    for partition in range(3):
        t.fill(source, [f"{partition}.{n}" for n in range(20)], partition)
    c.copy(t.name("copy"), source, sink, 60, 7, 3)
    c.open_consumer("c", {"reset": "earliest", "isolation": "read_committed"})
    c.assign("c", [[sink, p, "beginning"] for p in range(3)])
    read = c.poll("c", 60, 30_000) + c.poll("c", 0, QUIET_MS)
    rows = [[record["value"] for record in read if record["partition"] == p] for p in range(3)]

    def place() -> list[Any]:
        # Beside the offset franz-go keeps who it was.
        return [row[:3] for row in c.group_offsets(t.name("copy"))]

    return [rows, until(place, lambda found: [at for _, _, at in found] == [20, 20, 20])]


@scenario("txn-interleaved", SECTION, clients=CLIENTS, seconds=120, fast=True)
def interleaved(c: Client, t: Case) -> Outcome:
    """three producers' transactions on one partition, one within another, with aborts and plain records"""
    topic = t.topic()
    for name in ("a", "b", "z"):
        _open(c, t, name)
    ends = []
    c.begin("a")
    c.send("a", topic, _records("a1"))
    t.fill(topic, ["plain 1"])
    c.begin("b")
    c.send("b", topic, _records("b1"))
    c.send("a", topic, _records("a2"))
    ends.append(_ends(c, topic))
    _commit(c, "z", topic, "z1")
    _abort(c, "z", topic, "z2")
    early = _read(c, topic, 0, "read_committed")
    c.abort_transaction("a")
    ends.append(until(lambda: _ends(c, topic), lambda found: found["read_committed"] != [0, 0]))
    middle = _read(c, topic, 1, "read_committed")
    c.send("b", topic, _records("b2"))
    t.fill(topic, ["plain 2"])
    c.commit_transaction("b")
    ends.append(_settled(c, topic))
    return [ends, early, middle, _read(c, topic, 5, "read_committed"), _read(c, topic, 8, "read_uncommitted")]


@scenario("txn-read-from-inside", SECTION, clients=CLIENTS)
def from_inside(c: Client, t: Case) -> Outcome:
    """reading from offsets within an aborted and within a committed transaction, on a marker and behind it"""
    topic = t.topic()
    _open(c, t, "p")
    _commit(c, "p", topic, "a", "b")
    _abort(c, "p", topic, "c", "d")
    _commit(c, "p", topic, "e")
    ends = _settled(c, topic)
    found = []
    for offset in range(8):
        c.open_consumer("reader", {"reset": "earliest", "isolation": "read_committed"})
        c.assign("reader", [[topic, 0, offset]])
        wanted = len([1 for at in (0, 1, 6) if at >= offset])
        read = c.poll("reader", wanted, READ_MS) if wanted else c.poll("reader", 0, 500)
        found.append([[record["offset"], record["value"]] for record in read])
        c.close_consumer("reader")
    return [ends, found]


@scenario("txn-wakes-reader", SECTION, clients=CLIENTS)
def wakes(c: Client, t: Case) -> Outcome:
    """a read_committed reader that waits gets a transaction when it is committed, whole"""
    topic = t.topic()
    _open(c, t, "p")
    c.open_consumer("c", {"reset": "earliest", "isolation": "read_committed"})
    c.assign("c", [[topic, 0, "beginning"]])
    turns = []
    for turn in range(3):
        c.begin("p")
        c.send("p", topic, _records(f"{turn}a", f"{turn}b"))
        before = c.poll("c", 0, 500)
        c.commit_transaction("p")
        turns.append([[r["value"] for r in before], [r["value"] for r in c.poll("c", 2, READ_MS)]])
    return turns


@scenario("txn-list-offsets", SECTION, clients=CLIENTS)
def list_offsets(c: Client, t: Case) -> Outcome:
    """ends and times as consumers of both isolation levels see them, with a transaction open and after its end"""
    topic = t.topic()
    _open(c, t, "p")
    _commit(c, "p", topic, "a", timestamp_ms=AT_MS)
    _abort(c, "p", topic, "b", timestamp_ms=AT_MS + 10)
    c.begin("p")
    c.send("p", topic, _records("c", timestamp_ms=AT_MS + 20))
    found = []
    for _ in range(2):
        for isolation in ("read_uncommitted", "read_committed"):
            c.open_consumer("c", {"reset": "earliest", "isolation": isolation})
            ends = c.watermarks("c", topic, 0)
            times = [c.offsets_for_times("c", [[topic, 0, AT_MS + ms]])[0][2] for ms in (0, 5, 15)]
            found.append([isolation, ends, times])
            c.close_consumer("c")
        attempt(lambda: c.commit_transaction("p"))
        _settled(c, topic)
    return found


@scenario("txn-list-offsets-admin", SECTION, clients=("confluent-kafka", *LISTING))
def list_offsets_admin(c: Client, t: Case) -> Outcome:
    """the admin client's ListOffsets at both isolation levels: earliest, latest, the largest timestamp, a time"""
    topic = t.topic()
    _open(c, t, "p")
    _commit(c, "p", topic, "a", timestamp_ms=AT_MS)
    c.begin("p")
    c.send("p", topic, _records("b", timestamp_ms=AT_MS + 20))
    found = []
    for isolation in ("read_uncommitted", "read_committed"):
        for at in ("earliest", "latest", "max_timestamp", AT_MS, AT_MS + 10):
            offset = c.list_offsets([[topic, 0, at]], isolation)[0][2]
            # A marker has the broker's time: the newest of all.
            found.append([isolation, str(at), offset])
    c.abort_transaction("p")
    return [found, _settled(c, topic)]


@scenario("txn-compacted", SECTION, clients=CLIENTS, seconds=240)
def compacted(c: Client, t: Case) -> Outcome:
    """a compacted topic with aborts: the cleaner takes what was aborted, and the last committed values stay"""
    topic = t.topic(
        cleanup_policy="compact",
        segment_ms="500",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="1000",
        min_compaction_lag_ms="0",
    )
    _open(c, t, "p")
    for turn in range(4):
        for key in ("x", "y"):
            _commit(c, "p", topic, f"{key} {turn}", key=key)
            _abort(c, "p", topic, f"{key} {turn} aborted", key=key)
    _abort(c, "p", topic, "never", key="aborted alone")

    def cleaned() -> bool:
        # A segment is closed when the next record comes after its time; what is open is not cleaned.
        seen = [value for _, value in _rolled(c, topic, "read_uncommitted")]
        return not any("aborted" in value for value in seen) and "x 0" not in seen

    gone = until(cleaned, bool, 150.0)
    seen = _rolled(c, topic, "read_committed")
    return [gone, {value.partition(" ")[0]: value for _, value in seen}]


def _rolled(c: Client, topic: str, isolation: str) -> list[list[Any]]:
    """Commits one more record, and reads from the start up to it."""
    c.begin("p")
    last = c.send("p", topic, _records("roll", key="roll"))[0]["offset"]
    c.commit_transaction("p")
    c.open_consumer("reader", {"reset": "earliest", "isolation": isolation})
    c.assign("reader", [[topic, 0, "beginning"]])
    found: list[Record] = []

    def reading() -> bool:
        found.extend(c.poll("reader", 0, 300))
        return bool(found) and found[-1]["offset"] >= last

    until(reading, bool)
    c.close_consumer("reader")
    return [[record["offset"], record["value"]] for record in found]


def _in_every_state(c: Client, t: Case) -> str:
    """Four ids: `id-idle`, `id-open`, `id-committed`, `id-aborted`, in a topic of two partitions."""
    topic = t.topic(partitions=2)
    for name in ("idle", "open", "committed", "aborted"):
        _open(c, t, f"id-{name}", transaction_timeout_ms=50_000)
    _commit(c, "id-committed", topic, "a")
    _abort(c, "id-aborted", topic, "b", partition=1)
    c.begin("id-open")
    c.send("id-open", topic, _records("c", "d"))
    c.send("id-open", topic, _records("e", partition=1))
    return topic


def _listed(c: Client, t: Case) -> list[list[str]]:
    """[id, state], once what was ended is over."""

    def ended(found: list[list[str]]) -> bool:
        return not any(state.startswith("Prepare") for _, state in found)

    return list(until(lambda: c.list_transactions(t.name("id-")), ended))


@scenario("txn-list", SECTION, clients=LISTING, seconds=120)
def listed(c: Client, t: Case) -> Outcome:
    """ids with their states, each once"""
    _in_every_state(c, t)
    return _listed(c, t)


@scenario("txn-admin", SECTION, clients=LISTING, seconds=120)
def administered(c: Client, t: Case) -> Outcome:
    """which ids there are; each described, with its partitions; the producers of a partition"""
    topic = _in_every_state(c, t)
    states = dict(_listed(c, t))
    return {
        "states": states,
        "described": {name: c.describe_transactions([name]) for name in sorted(states)},
        "nobody": attempt(lambda: c.describe_transactions([t.name("nobody")])),
        "producers": [c.describe_producers(topic, partition) for partition in range(2)],
    }


@scenario("txn-fence-by-admin", SECTION, clients=("java", "java-3.9"), seconds=120)
def fence_by_admin(c: Client, t: Case) -> Outcome:
    """an administrator fences a producer: its transaction is aborted, and it is told so"""
    topic = t.topic()
    _open(c, t, "p")
    c.begin("p")
    c.send("p", topic, _records("a"))
    said = c.fence_producers([t.name("p")])
    aborted = _settled(c, topic)
    return [said, aborted, attempt(lambda: c.commit_transaction("p")), _read(c, topic, 0, "read_committed")]


@scenario("txn-misused", SECTION, clients=CLIENTS)
def misused(c: Client, t: Case) -> Outcome:
    """beginning twice, ending what was not begun, sending outside: the client's own word, and it goes on or not"""
    topic = t.topic()
    _open(c, t, "p")
    told = [attempt(lambda: c.commit_transaction("p"))]
    c.open_producer("fresh", {"transactional_id": t.name("fresh")})
    c.init_transactions("fresh")
    c.begin("fresh")
    told.append(attempt(lambda: c.begin("fresh")))
    return [told, _ends(c, topic)]
