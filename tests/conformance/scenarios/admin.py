"""Administration: topics, partitions, records, offsets, groups, the cluster."""

from __future__ import annotations

from typing import Any

from conformance.client import Client
from conformance.frame import Case, Outcome, attempt, scenario, until
from conformance.scenarios.data import AT_MS
from conformance.scenarios.groups import group_settings, settle

SECTION = "Administration"


def shape(topic: Any) -> Any:
    """A topic's description without who is where."""
    if not isinstance(topic, dict):
        return topic
    partitions = [
        {
            "partition": p["partition"],
            "led": p["leader"] in p["replicas"],
            "replicas": len(set(p["replicas"])),
            "isr": len(p["isr"]),
        }
        for p in topic["partitions"]
    ]
    return {**topic, "partitions": sorted(partitions, key=lambda p: int(p["partition"]))}


def described(c: Client, name: str) -> Any:
    """Shape of one topic, once all of its replicas are in sync."""

    def synced(found: Any) -> bool:
        return not isinstance(found, dict) or all(p["isr"] == p["replicas"] for p in found["partitions"])

    return until(lambda: shape(c.describe_topics([name])[name]), synced)


@scenario("topic-create-delete", SECTION, fast=True)
def create_delete(c: Client, t: Case) -> Outcome:
    """create, describe, list, delete, and make it anew"""
    name = t.name()
    seen: list[Any] = [c.create_topics([{"name": name, "partitions": 3, "replication": 2}])]
    t.ready(name, 3)
    seen += [described(c, name), name in c.list_topics()]
    seen += [c.create_topics([{"name": name, "partitions": 1, "replication": 1}])]
    seen += [c.delete_topics([name])]
    seen += [until(lambda: name in c.list_topics(), lambda there: not there)]
    seen += [c.delete_topics([name])]
    again = until(
        lambda: c.create_topics([{"name": name, "partitions": 1, "replication": 1}]),
        lambda answer: answer[name] == "NONE",
    )
    t.ready(name, 1)
    return [*seen, again, described(c, name)]


@scenario("topic-defaults", SECTION)
def defaults(c: Client, t: Case) -> Outcome:
    """no number of partitions and no replication factor: the cluster's"""
    name = t.name()
    answer = c.create_topics([{"name": name}])
    t.ready(name, 1)
    return [answer, described(c, name)]


@scenario("topic-assignment", SECTION)
def assignment(c: Client, t: Case) -> Outcome:
    """replicas as the client says"""
    name = t.name()
    answer = c.create_topics([{"name": name, "replicas": {"0": [2, 3], "1": [3, 1]}}])
    t.ready(name, 2)
    found = c.describe_topics([name])[name]
    return [answer, [[p["partition"], p["replicas"]] for p in found["partitions"]]]


@scenario("topic-validate-only", SECTION)
def validate_only(c: Client, t: Case) -> Outcome:
    """validate_only makes nothing, and says what would be wrong"""
    good, bad = t.name("good"), t.name("bad")
    answers = [
        c.create_topics([{"name": good, "partitions": 2, "replication": 1}], validate_only=True),
        c.create_topics([{"name": bad, "partitions": 0, "replication": 1}], validate_only=True),
    ]
    return [answers, good in c.list_topics(), bad in c.list_topics()]


@scenario("topic-create-errors", SECTION, fast=True)
def create_errors(c: Client, t: Case) -> Outcome:
    """names, counts, factors, assignments and configs that cannot be"""
    there = t.topic("there")
    wrong: list[dict[str, Any]] = [
        {"name": "has space", "partitions": 1, "replication": 1},
        {"name": ".", "partitions": 1, "replication": 1},
        {"name": "..", "partitions": 1, "replication": 1},
        {"name": "x" * 250, "partitions": 1, "replication": 1},
        {"name": "sl/ash", "partitions": 1, "replication": 1},
        {"name": there, "partitions": 1, "replication": 1},
        {"name": there.replace(".", "_"), "partitions": 1, "replication": 1},
        {"name": t.name("p0"), "partitions": 0, "replication": 1},
        {"name": t.name("p-2"), "partitions": -2, "replication": 1},
        {"name": t.name("r0"), "partitions": 1, "replication": 0},
        {"name": t.name("r9"), "partitions": 1, "replication": 9},
        {"name": t.name("no-node"), "replicas": {"0": [1, 99]}},
        {"name": t.name("twice"), "replicas": {"0": [1, 1]}},
        {"name": t.name("uneven"), "replicas": {"0": [1, 2], "1": [1]}},
        {"name": t.name("nothing"), "replicas": {"0": []}},
        {"name": t.name("key"), "partitions": 1, "replication": 1, "config": {"no.such.key": "1"}},
        {"name": t.name("value"), "partitions": 1, "replication": 1, "config": {"retention.ms": "soon"}},
        {"name": t.name("range"), "partitions": 1, "replication": 1, "config": {"segment.bytes": "1"}},
        {"name": t.name("policy"), "partitions": 1, "replication": 1, "config": {"cleanup.policy": "burn"}},
        {"name": t.name("codec"), "partitions": 1, "replication": 1, "config": {"compression.type": "zip"}},
        {"name": t.name("isr"), "partitions": 1, "replication": 1, "config": {"min.insync.replicas": "0"}},
    ]
    return [attempt(lambda w=one: list(c.create_topics([w]).values())) for one in wrong]  # type: ignore[misc]


@scenario("topic-create-mixed", SECTION)
def create_mixed(c: Client, t: Case) -> Outcome:
    """good and bad topics in one request: each has its own answer"""
    good, bad, twice = t.name("good"), t.name("bad"), t.name("twice")
    answer = c.create_topics(
        [
            {"name": good, "partitions": 1, "replication": 1},
            {"name": bad, "partitions": 0, "replication": 1},
            {"name": twice, "partitions": 1, "replication": 1},
        ]
    )
    return [answer, c.delete_topics([good, bad, twice])]


@scenario("create-partitions", SECTION, fast=True)
def create_partitions(c: Client, t: Case) -> Outcome:
    """more, the same, fewer, too many zeros, an unknown topic, validate_only"""
    name = t.topic(partitions=2)
    seen: list[Any] = [c.create_partitions({name: 5}, validate_only=True), c.create_partitions({name: 4})]
    t.ready(name, 4)
    seen += [attempt(lambda n=count: c.create_partitions({name: n})) for count in (4, 3, 0, -1)]  # type: ignore[misc]
    seen += [c.create_partitions({t.name("nowhere"): 3}), described(c, name)]
    t.fill(name, ["in the new one"], 3)
    return seen


@scenario("describe-unknown", SECTION, fast=True)
def describe_unknown(c: Client, t: Case) -> Outcome:
    """a topic that is not there, and a name that cannot be"""
    return [
        attempt(lambda: c.describe_topics([t.name("nowhere")])),
        attempt(lambda: c.describe_topics(["not a name"])),
    ]


@scenario("describe-cluster", SECTION, fast=True)
def cluster(c: Client, t: Case) -> Outcome:
    """node ids, a controller, a cluster id"""
    return c.describe_cluster()


@scenario("delete-records", SECTION, fast=True)
def delete_records(c: Client, t: Case) -> Outcome:
    """up to an offset, up to the end, again, past the end, of nothing"""
    topic = t.topic(partitions=2)
    t.fill(topic, [str(n) for n in range(10)])
    wanted = [[topic, 0, 3], [topic, 0, 2], [topic, 0, 11], [topic, 0, -1], [topic, 1, 0], [topic, 1, -1]]
    return [attempt(lambda p=place: c.delete_records([p])) for place in wanted]  # type: ignore[misc]


@scenario("delete-records-unknown", SECTION, clients=("confluent-kafka", "kafka-python", "aiokafka"))
def delete_records_unknown(c: Client, t: Case) -> Outcome:
    """of a topic or partition that is not there (the Java client asks again for a minute)"""
    topic = t.topic()
    unknown = [[t.name("nowhere"), 0, 1], [topic, 77, 1]]
    return [attempt(lambda p=place: c.delete_records([p])) for place in unknown]  # type: ignore[misc]


@scenario("list-offsets", SECTION, fast=True)
def list_offsets(c: Client, t: Case) -> Outcome:
    """earliest, latest, largest timestamp, by time; of an empty and an unknown partition"""
    topic = t.topic(partitions=2)
    for n, at in enumerate((3, 9, 5)):
        t.fill(topic, [str(n)], timestamp_ms=AT_MS + at)
    specs: list[Any] = ["earliest", "latest", "max_timestamp", AT_MS + 4, AT_MS + 10]
    full = [attempt(lambda s=spec: c.list_offsets([[topic, 0, s]])) for spec in specs]  # type: ignore[misc]
    empty = [attempt(lambda s=spec: c.list_offsets([[topic, 1, s]])) for spec in specs]  # type: ignore[misc]
    return [full, empty, attempt(lambda: c.list_offsets([[topic, 9, "latest"]]))]


@scenario("elect-leaders", SECTION)
def elect(c: Client, t: Case) -> Outcome:
    """preferred leaders lead already; an unknown partition; an unclean election that nothing needs"""
    topic = t.topic(partitions=2)
    described(c, topic)
    return [
        attempt(lambda: c.elect_leaders([[topic, 0], [topic, 1]])),
        attempt(lambda: c.elect_leaders([[topic, 9]])),
        attempt(lambda: c.elect_leaders([[topic, 0]], unclean=True)),
    ]


@scenario("log-dirs", SECTION)
def log_dirs(c: Client, t: Case) -> Outcome:
    """every node's directories and the topic's replicas in them"""
    topic = t.topic(partitions=2)
    t.fill(topic, ["x"])
    described(c, topic)
    return c.log_dirs(topic)


@scenario("reassign", SECTION, seconds=90)
def reassign(c: Client, t: Case) -> Outcome:
    """a partition moves to other nodes, with its records"""
    name = t.name()
    made = c.create_topics([{"name": name, "replicas": {"0": [1, 2]}}])
    t.ready(name, 1)
    t.fill(name, ["a", "b"])
    asked = c.reassign([[name, 0, [3, 1]]])
    done = until(lambda: c.reassignments(name), lambda left: not left, 40)
    moved = until(
        lambda: c.describe_topics([name])[name]["partitions"][0],
        lambda p: p["replicas"] == [3, 1] and p["isr"] == [1, 3],
    )
    wrong = [
        attempt(lambda: c.reassign([[name, 0, [1, 99]]])),
        attempt(lambda: c.reassign([[name, 0, None]])),
        attempt(lambda: c.reassign([[t.name("nowhere"), 0, [1]]])),
    ]
    return [made, asked, done, moved["replicas"], moved["isr"], wrong]


@scenario("groups-list-describe-delete", SECTION, fast=True, seconds=120)
def groups(c: Client, t: Case) -> Outcome:
    """a group without members and one with: listed, described, deleted, or not"""
    topic, empty, live = t.topic(partitions=2), t.group("empty"), t.group("live")
    c.open_consumer("e", {"group": empty})
    c.assign("e", [[topic, 0, "beginning"]])
    c.commit("e", [[topic, 0, 0, None]])
    c.close_consumer("e")
    c.open_consumer("l", group_settings(live, client_id="me"))
    c.subscribe("l", [topic])
    settle([(c, "l")], topic, 2)
    seen: list[Any] = [[g for g in c.list_groups() if g["group"] in (empty, live)]]
    seen += [c.describe_groups([empty]), c.describe_groups([live]), c.describe_groups([t.group("none")])]
    seen += [attempt(lambda: c.delete_groups([live])), attempt(lambda: c.delete_groups([empty]))]
    seen += [attempt(lambda: c.delete_groups([empty]))]
    return [*seen, [g["group"] for g in c.list_groups() if g["group"] in (empty, live)]]


@scenario("group-offsets", SECTION, fast=True, seconds=90)
def group_offsets(c: Client, t: Case) -> Outcome:
    """a group's offsets read, set and deleted from outside"""
    topic, group = t.topic(partitions=3), t.group()
    c.open_consumer("a", {"group": group})
    c.assign("a", [[topic, 0, "beginning"], [topic, 1, "beginning"]])
    c.commit("a", [[topic, 0, 5, "m"], [topic, 1, 6, None]])
    c.close_consumer("a")
    seen: list[Any] = [c.group_offsets(group), attempt(lambda: c.group_offsets(t.group("none")))]
    seen += [attempt(lambda: c.alter_group_offsets(group, [[topic, 0, 1], [topic, 2, 7]]))]
    seen += [c.group_offsets(group)]
    seen += [attempt(lambda: c.alter_group_offsets(group, [[topic, 9, 1]]))]
    return seen


@scenario("group-offsets-delete", SECTION, seconds=90)
def group_offsets_delete(c: Client, t: Case) -> Outcome:
    """some of a group's offsets are deleted; not those of a topic that a member reads"""
    topic, group = t.topic(partitions=2), t.group()
    c.open_consumer("a", group_settings(group))
    c.subscribe("a", [topic])
    settle([(c, "a")], topic, 2)
    c.commit("a", [[topic, 0, 5, None], [topic, 1, 6, None]])
    seen: list[Any] = [attempt(lambda: c.delete_group_offsets(group, [[topic, 0]]))]
    c.close_consumer("a")
    until(lambda: str(c.describe_groups([group])), lambda text: "Empty" in text)
    seen += [attempt(lambda: c.delete_group_offsets(group, [[topic, 0]])), c.group_offsets(group)]
    seen += [attempt(lambda: c.delete_group_offsets(t.group("none"), [[topic, 0]]))]
    return seen


@scenario("group-offsets-live", SECTION, seconds=90)
def group_offsets_live(c: Client, t: Case) -> Outcome:
    """a group with members lets nobody else set its offsets"""
    topic, group = t.topic(), t.group()
    c.open_consumer("a", group_settings(group))
    c.subscribe("a", [topic])
    settle([(c, "a")], topic, 1)
    return attempt(lambda: c.alter_group_offsets(group, [[topic, 0, 1]]))


@scenario("group-remove-members", SECTION, seconds=90)
def remove_members(c: Client, t: Case) -> Outcome:
    """static members are removed by name, one that is not there among them"""
    topic, group = t.topic(), t.group()
    c.open_consumer("a", group_settings(group, instance_id="one"))
    c.subscribe("a", [topic])
    settle([(c, "a")], topic, 1)
    return attempt(lambda: c.remove_members(group, ["one", "nobody"]))
