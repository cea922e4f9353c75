"""Consumer groups: joining, leaving, dying, assignors, offsets, static members, both protocols."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from conformance.client import Client, ClientError, Place, Record
from conformance.frame import Case, Outcome, Play, attempt, scenario, until

SECTION = "Groups"
JOIN_S = 60.0
QUICK = {"session_timeout_ms": 6_000, "heartbeat_ms": 500}


def settle(
    members: Sequence[tuple[Client, str]],
    topic: str,
    partitions: int,
    *,
    each: bool = True,
    seconds: float = JOIN_S,
) -> list[list[Place]]:
    """Poll all members until they share all partitions, each with some; their assignments.

    Processes are polled side by side, members of the same process in turn: a client that joins only while it is
    polled (kafka-python) may never agree with others that always wait for it.
    """
    taken: list[Record] = []
    of_client: dict[Client, list[str]] = {}
    for client, name in members:
        of_client.setdefault(client, []).append(name)

    def poll(client: Client) -> list[Record]:
        return [record for name in of_client[client] for record in client.poll(name, 0, 200)]

    def look() -> list[list[Place]]:
        with ThreadPoolExecutor(len(of_client)) as threads:
            for found in threads.map(poll, of_client):
                taken.extend(found)
        return [client.assignment(name) for client, name in members]

    def shared(found: list[list[Place]]) -> bool:
        every = sorted(place for one in found for place in one)
        whole = every == [[topic, p] for p in range(partitions)]
        return whole and (all(found) or not each)

    found: list[list[Place]] = until(look, shared, seconds)
    return found


def sizes(assignments: list[list[Place]]) -> list[int]:
    """How many partitions each member has, largest first: who has which is by member id, which is random."""
    return sorted((len(one) for one in assignments), reverse=True)


def group_settings(group: str, **more: Any) -> dict[str, Any]:
    """Settings of a member."""
    return {"group": group, "reset": "earliest", **QUICK, **more}


def drain(c: Client, name: str, count: int) -> list[Any]:
    """Sorted values of so many records."""
    return sorted(record["value"] for record in c.poll(name, count, 40_000))


@scenario("group-one-member", SECTION, fast=True, seconds=90)
def one_member(c: Client, t: Case) -> Outcome:
    """a member reads all partitions, commits, and a later one goes on from there"""
    topic, group = t.topic(partitions=3), t.group()
    for partition in range(3):
        t.fill(topic, [f"{partition}-{n}" for n in range(4)], partition)
    c.open_consumer("a", group_settings(group))
    c.subscribe("a", [topic])
    first = drain(c, "a", 12)
    c.commit("a")
    c.close_consumer("a")
    t.fill(topic, ["more"], 1)
    c.open_consumer("b", group_settings(group))
    c.subscribe("b", [topic])
    second = drain(c, "b", 1)
    committed = c.committed("b", [[topic, p] for p in range(3)])
    return [first, second, committed]


def _shares(kind: str, count: int, **more: Any) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic, group = t.topic(partitions=7), t.group()
        members = [(c, "m0"), *((c.spawn(), f"m{n}") for n in range(1, count))]
        for client, name in members:
            client.open_consumer(name, group_settings(group, **more))
            client.subscribe(name, [topic])
        found = settle(members, topic, 7)
        described = until(
            lambda: c.describe_groups([group])[group],
            lambda g: not isinstance(g, dict) or g["state"] == "Stable",
            JOIN_S,
        )
        told = (
            {k: v for k, v in described.items() if k != "members"}
            if isinstance(described, dict)
            else described
        )
        if isinstance(described, dict) and isinstance(described["members"], list):
            told["sizes"] = sizes([m["assignment"] for m in described["members"]])
        return [sizes(found), told]

    play.__doc__ = f"{count} members, {kind}"
    return play


scenario("group-range", SECTION, seconds=120)(_shares("range", 3, strategy="range"))
scenario("group-roundrobin", SECTION, seconds=120)(_shares("roundrobin", 3, strategy="roundrobin"))
scenario("group-sticky", SECTION, seconds=120)(_shares("sticky", 2, strategy="sticky"))
scenario("group-cooperative", SECTION, seconds=120)(
    _shares("cooperative-sticky", 3, strategy="cooperative-sticky")
)
scenario("group-848", SECTION, seconds=120)(_shares("group.protocol=consumer", 3, protocol="consumer"))
scenario("group-848-range", SECTION, seconds=120)(
    _shares(
        "group.protocol=consumer with the range assignor", 2, protocol="consumer", remote_assignor="range"
    )
)


def _comes_and_goes(what: str, **more: Any) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic, group = t.topic(partitions=6), t.group()
        c.open_consumer("a", group_settings(group, **more))
        c.subscribe("a", [topic])
        alone = sizes(settle([(c, "a")], topic, 6))
        c.open_consumer("b", group_settings(group, **more))
        c.subscribe("b", [topic])
        both = sizes(settle([(c, "a"), (c, "b")], topic, 6))
        c.close_consumer("a")
        left = sizes(settle([(c, "b")], topic, 6))
        c.unsubscribe("b")
        c.close_consumer("b")
        state = until(lambda: _state(c.describe_groups([group])[group]), lambda s: s in ("Empty", "Dead"), 30)
        return [alone, both, left, state]

    play.__doc__ = f"one joins, one leaves, the last leaves: {what}"
    return play


scenario("group-join-leave", SECTION, seconds=180)(_comes_and_goes("classic"))
scenario("group-join-leave-cooperative", SECTION, seconds=180)(
    _comes_and_goes("cooperative-sticky", strategy="cooperative-sticky")
)
scenario("group-join-leave-848", SECTION, seconds=180)(
    _comes_and_goes("group.protocol=consumer", protocol="consumer")
)


def _state(described: Any) -> str:
    return str(described["state"]) if isinstance(described, dict) else str(described)


def _dies(what: str, **more: Any) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic, group = t.topic(partitions=4), t.group()
        victim = c.spawn()
        c.open_consumer("a", group_settings(group, **more))
        c.subscribe("a", [topic])
        victim.open_consumer("v", group_settings(group, **more))
        victim.subscribe("v", [topic])
        both = sizes(settle([(c, "a"), (victim, "v")], topic, 4))
        victim.kill()
        return [both, sizes(settle([(c, "a")], topic, 4))]

    play.__doc__ = f"kill -9 of a member: the other one gets everything after the session timeout, {what}"
    return play


scenario("group-member-dies", SECTION, seconds=150)(_dies("classic"))
scenario("group-member-dies-848", SECTION, seconds=150)(_dies("group.protocol=consumer", protocol="consumer"))


def _static(what: str, **more: Any) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic, group = t.topic(partitions=4), t.group()
        victim = c.spawn()
        c.open_consumer("a", group_settings(group, instance_id="i1", **more))
        c.subscribe("a", [topic])
        victim.open_consumer("v", group_settings(group, instance_id="i2", **more))
        victim.subscribe("v", [topic])
        both = settle([(c, "a"), (victim, "v")], topic, 4)
        described = c.describe_groups([group])[group]
        victim.kill()
        # The same instance comes back before its session is over: it gets what it had, and nobody else moves.
        c.open_consumer("again", group_settings(group, instance_id="i2", **more))
        c.subscribe("again", [topic])
        try:
            back = settle([(c, "a"), (c, "again")], topic, 4)
        except ClientError as error:
            # With group.protocol=consumer the name is taken until its session is over (UNRELEASED_INSTANCE_ID).
            return [sizes(both), error.name]
        names = (
            sorted(m["instance_id"] for m in described["members"])
            if isinstance(described["members"], list)
            else 0
        )
        return [sizes(both), names, back == both, sizes(back)]

    play.__doc__ = f"static members: one dies and is back before anybody notices, {what}"
    return play


scenario("group-static", SECTION, seconds=150)(_static("classic"))
scenario("group-static-848", SECTION, seconds=150)(_static("group.protocol=consumer", protocol="consumer"))


@scenario("group-static-fenced", SECTION, seconds=120)
def static_fenced(c: Client, t: Case) -> Outcome:
    """the same group.instance.id twice: the first one is fenced"""
    topic, group = t.topic(partitions=2), t.group()
    c.open_consumer("a", group_settings(group, instance_id="twin"))
    c.subscribe("a", [topic])
    alone = sizes(settle([(c, "a")], topic, 2))
    c.open_consumer("b", group_settings(group, instance_id="twin"))
    c.subscribe("b", [topic])
    second = sizes(settle([(c, "b")], topic, 2))

    def first() -> Any:
        return attempt(lambda: c.poll("a", 0, 1_000))

    return [alone, second, until(first, lambda found: isinstance(found, dict), 30)]


def _resets(reset: str) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic, group = t.topic(partitions=1), t.group()
        t.fill(topic, ["old 1", "old 2"])
        c.open_consumer("a", group_settings(group) | {"reset": reset})
        c.subscribe("a", [topic])

        def first() -> Any:
            if reset == "earliest":
                return drain(c, "a", 2)
            settle([(c, "a")], topic, 1)  # from here on it has a position, or has failed
            return [r["value"] for r in c.poll("a", 2, 4_000)]

        seen: list[Any] = [attempt(first)]
        if reset == "latest":
            t.fill(topic, ["new"])
            seen.append([r["value"] for r in c.poll("a", 1, 20_000)])
        return seen

    play.__doc__ = f"a new group with auto.offset.reset={reset}"
    return play


for _reset in ("earliest", "latest", "none"):
    scenario(f"group-reset-{_reset}", SECTION, seconds=120)(_resets(_reset))


def _commits(what: str, **more: Any) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        topic, group = t.topic(partitions=2), t.group()
        t.fill(topic, [str(n) for n in range(10)])
        c.open_consumer("a", group_settings(group, **more))
        c.subscribe("a", [topic])
        settle([(c, "a")], topic, 2)
        places = [[topic, 0], [topic, 1]]
        seen: list[Any] = [c.committed("a", places)]
        c.commit("a", [[topic, 0, 3, "where I was"], [topic, 1, 0, None]])
        seen.append(c.committed("a", places))
        c.commit("a", [[topic, 0, 1, "backwards"]])
        c.close_consumer("a")
        c.open_consumer("b", group_settings(group, **more))
        seen.append(c.committed("b", places))
        c.subscribe("b", [topic])
        seen.append([r["offset"] for r in c.poll("b", 9, 40_000)])
        return seen

    play.__doc__ = f"commit with metadata, backwards, and read on from it: {what}"
    return play


scenario("group-commit", SECTION, fast=True, seconds=120)(_commits("classic"))
scenario("group-commit-848", SECTION, seconds=120)(_commits("group.protocol=consumer", protocol="consumer"))


@scenario("group-commit-without-members", SECTION, fast=True)
def commit_alone(c: Client, t: Case) -> Outcome:
    """a consumer that assigns by hand commits for its group"""
    topic, group = t.topic(), t.group()
    t.fill(topic, ["a", "b", "c"])
    c.open_consumer("a", {"group": group, "reset": "earliest"})
    c.assign("a", [[topic, 0, None]])
    first = [r["value"] for r in c.poll("a", 2, 20_000)][:2]
    c.commit("a", [[topic, 0, 2, "by hand"]])
    c.close_consumer("a")
    c.open_consumer("b", {"group": group, "reset": "none"})
    c.assign("b", [[topic, 0, None]])
    return [first, c.committed("b", [[topic, 0]]), [r["value"] for r in c.poll("b", 1, 20_000)]]


@scenario(
    "group-commit-errors", SECTION, clients=("confluent-kafka", "kafka-python", "aiokafka"), seconds=200
)
def commit_errors(c: Client, t: Case) -> Outcome:
    """commits for a partition or topic that is not there, and metadata that is too long

    Not with the Java client, which asks again for a minute each time.
    """
    topic, group = t.topic(), t.group()
    c.open_consumer("a", {"group": group})
    c.assign("a", [[topic, 0, "beginning"]])

    def commit(place: Place, metadata: str | None = None) -> Any:
        return attempt(lambda: c.commit("a", [[*place, 1, metadata]]))

    return [
        commit([topic, 99]),
        commit([t.name("nowhere"), 0]),
        commit([topic, 0], "m" * 5_000),
        commit([topic, 0]),
    ]


@scenario("group-auto-commit", SECTION, seconds=120)
def auto_commit(c: Client, t: Case) -> Outcome:
    """enable.auto.commit: what was read is committed on close"""
    topic, group = t.topic(), t.group()
    t.fill(topic, [str(n) for n in range(5)])
    c.open_consumer("a", group_settings(group, auto_commit=True))
    c.subscribe("a", [topic])
    read = drain(c, "a", 5)
    c.close_consumer("a")
    c.open_consumer("b", {"group": group})
    return [read, c.committed("b", [[topic, 0]])]


def _pattern(what: str, **more: Any) -> Play:
    def play(c: Client, t: Case) -> Outcome:
        group = t.group()
        names = [t.topic(f"re-{n}") for n in range(2)]
        other = t.topic("other")
        for name in (*names, other):
            t.fill(name, [name])
        c.open_consumer("a", group_settings(group, **more))
        c.subscribe_pattern("a", f"^{t.name('re-')}.*")
        return [
            [r["value"] for r in sorted(c.poll("a", 2, 40_000), key=lambda r: str(r["value"]))],
            c.assignment("a"),
        ]

    play.__doc__ = f"subscription by regular expression, {what}"
    return play


scenario("group-pattern", SECTION, seconds=120)(_pattern("classic"))
scenario("group-pattern-848", SECTION, seconds=120)(_pattern("group.protocol=consumer", protocol="consumer"))


@scenario("group-two-topics", SECTION, seconds=120)
def two_topics(c: Client, t: Case) -> Outcome:
    """members with different subscriptions"""
    group = t.group()
    one, two = t.topic("one", partitions=2), t.topic("two", partitions=2)
    c.open_consumer("a", group_settings(group, strategy="range"))
    c.subscribe("a", [one])
    c.open_consumer("b", group_settings(group, strategy="range"))
    c.subscribe("b", [two])

    def look() -> list[Any]:
        for name in ("a", "b"):
            c.poll(name, 0, 200)
        return [c.assignment("a"), c.assignment("b")]

    return until(look, lambda found: [len(one) for one in found] == [2, 2], JOIN_S)


@scenario("group-topic-grows", SECTION, seconds=120)
def grows(c: Client, t: Case) -> Outcome:
    """with group.protocol=consumer new partitions are found and read"""
    topic, group = t.topic(partitions=1), t.group()
    c.open_consumer("a", group_settings(group, protocol="consumer"))
    c.subscribe("a", [topic])
    before = settle([(c, "a")], topic, 1)
    grown = c.create_partitions({topic: 3})
    t.ready(topic, 3)
    return [before, grown, settle([(c, "a")], topic, 3)]


@scenario("group-upgrade", SECTION, seconds=150)
def upgrade(c: Client, t: Case) -> Outcome:
    """a member of the new protocol joins a classic group: both share"""
    topic, group = t.topic(partitions=4), t.group()
    c.open_consumer("old", group_settings(group, strategy="range"))
    c.subscribe("old", [topic])
    alone = sizes(settle([(c, "old")], topic, 4))
    c.open_consumer("new", group_settings(group, protocol="consumer"))
    c.subscribe("new", [topic])
    both = sizes(settle([(c, "old"), (c, "new")], topic, 4))
    c.close_consumer("old")
    return [alone, both, sizes(settle([(c, "new")], topic, 4))]
