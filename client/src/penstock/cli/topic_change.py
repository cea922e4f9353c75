"""`penstock topic alter`, `add-partitions`, `trim` and `reassign`: topics that are there already."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from penstock.cli import wire
from penstock.cli.asking import ask, ask_each
from penstock.cli.kafka import (
    CALL_TIMEOUT_S,
    admin_client,
    bootstrap_option,
    check_reachable,
    cluster_metadata,
    json_option,
    topic_metadata,
)
from penstock.cli.moves import Planner
from penstock.cli.output import note, print_json, print_table
from penstock.errors import CommandError, ExitCode

POLL_INTERVAL_S = 0.2


@click.command()
@click.argument("topic")
@click.option("--set", "-s", "given", multiple=True, metavar="KEY=VALUE", help="A setting to set.")
@click.option("--unset", "-u", "removed", multiple=True, metavar="KEY", help="A setting to remove.")
@click.option("--dry-run", is_flag=True, help="Only check that it would be taken.")
@bootstrap_option
def alter(
    topic: str, given: tuple[str, ...], removed: tuple[str, ...], dry_run: bool, bootstrap: str
) -> None:
    """Change settings of a topic, all of them or none. They count at once.

    \b
    Examples:
      penstock topic alter flights --set retention.ms=86400000
      penstock topic alter flights --set cleanup.policy=compact --unset retention.ms
    """
    changes: list[tuple[str, str | None]] = []
    for pair in given:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise CommandError(f"--set {pair!r}: write it as KEY=VALUE", ExitCode.USAGE)
        changes.append((key, value))
    changes += [(key, None) for key in removed]
    if not changes:
        raise CommandError("say what to change: --set KEY=VALUE or --unset KEY", ExitCode.USAGE)
    check_reachable(bootstrap)
    wire.alter_configs(bootstrap, "topic", topic, changes, check=dry_run)
    note(f"topic {topic}: {'the change would be taken' if dry_run else 'changed'}")


@click.command("add-partitions")
@click.argument("topic")
@click.option("--total", "-t", type=click.IntRange(1, 20_000), help="How many there shall be in all.")
@click.option("--add", "-a", type=click.IntRange(1, 20_000), help="How many more there shall be.")
@bootstrap_option
def add_partitions(topic: str, total: int | None, add: int | None, bootstrap: str) -> None:
    """Give a topic more partitions; there are never fewer.

    Records with a key go to other partitions from then on.

    \b
    Examples:
      penstock topic add-partitions flights --total 12
      penstock topic add-partitions flights --add 2
    """
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import NewPartitions

    if (total is None) == (add is None):
        raise CommandError("say how many: either --total or --add", ExitCode.USAGE)
    client = admin_client(bootstrap)
    have = len(topic_metadata(client, bootstrap, topic).partitions)
    wanted = total if total is not None else have + (add or 0)
    answer = ask(
        lambda: client.create_partitions([NewPartitions(topic, wanted)], operation_timeout=CALL_TIMEOUT_S)[
            topic
        ],
        f"topic {topic!r}",
    )
    # Of its own doing, if a try before this one was carried out and nobody heard.
    is_done = answer.repeats and answer.says(KafkaError.INVALID_PARTITIONS)
    if not (is_done and len(topic_metadata(client, bootstrap, topic).partitions) == wanted):
        answer.result()
    note(f"topic {topic} has {wanted} partitions, {wanted - have} of them new")


@click.command()
@click.argument("topic")
@click.option("--partition", "-p", "chosen", multiple=True, type=click.IntRange(0), help="Default: all.")
@click.option("--before-offset", type=click.IntRange(0), help="Records below it go.")
@click.option(
    "--before-timestamp",
    type=click.IntRange(0),
    help="Those before the first one at or after it, ms since 1970.",
)
@click.option("--everything", is_flag=True, help="All records that are there now.")
@bootstrap_option
@json_option
def trim(
    topic: str,
    chosen: tuple[int, ...],
    before_offset: int | None,
    before_timestamp: int | None,
    everything: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Delete the oldest records of a topic, for good.

    \b
    Examples:
      penstock topic trim flights --before-timestamp 1735689600000
      penstock topic trim flights --partition 0 --before-offset 1000
      penstock topic trim scratch --everything
    """
    from confluent_kafka import TopicPartition, admin

    if [before_offset is not None, before_timestamp is not None, everything].count(True) != 1:
        raise CommandError(
            "say what goes: one of --before-offset, --before-timestamp, --everything", ExitCode.USAGE
        )
    client = admin_client(bootstrap)
    partitions = sorted(topic_metadata(client, bootstrap, topic).partitions)
    unknown = sorted(set(chosen) - set(partitions))
    if unknown:
        raise CommandError(
            f"topic {topic!r} has no partition {unknown[0]}; see `penstock topic describe {topic}`"
        )
    places = [TopicPartition(topic, number) for number in chosen or partitions]
    if before_offset is not None:
        wanted = [TopicPartition(topic, p.partition, before_offset) for p in places]
    else:
        specs: Any = admin.OffsetSpec
        spec = specs.latest() if everything else specs.for_timestamp(before_timestamp)
        latest = _offsets(client, places, specs.latest())
        found = _offsets(client, places, spec)
        # Where nothing is that new all of it goes.
        wanted = [
            TopicPartition(topic, n, offset if offset >= 0 else latest[n]) for n, offset in found.items()
        ]
    done = ask_each(
        lambda places: client.delete_records(
            places, request_timeout=CALL_TIMEOUT_S, operation_timeout=CALL_TIMEOUT_S
        ),
        wanted,
        _named,
    )
    rows = [
        {"partition": place.partition, "earliest": answer.result().low_watermark}
        for place, answer in sorted(done.items(), key=lambda item: item[0].partition)
    ]
    if as_json:
        print_json({"topic": topic, "partitions": rows})
    else:
        print_table(("partition", "earliest"), [list(row.values()) for row in rows])


@click.command()
@click.argument("topic")
@click.option(
    "--replication-factor", "-r", type=click.IntRange(1, 100), help="How many replicas each shall have."
)
@click.option("--off-node", type=click.IntRange(1), help="Move replicas off that node.")
@click.option("--to", "target", metavar="ID,ID,...", help="Exactly these nodes, the preferred leader first.")
@click.option("--cancel", is_flag=True, help="Cancel what is under way.")
@click.option("--status", is_flag=True, help="Show what is under way.")
@click.option("--partition", "-p", "chosen", multiple=True, type=click.IntRange(0), help="Default: all.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option(
    "--wait", "wait_s", type=click.IntRange(0), default=0, metavar="SECONDS", help="Wait until it is done."
)
@bootstrap_option
@json_option
def reassign(
    topic: str,
    replication_factor: int | None,
    off_node: int | None,
    target: str | None,
    cancel: bool,
    status: bool,
    chosen: tuple[int, ...],
    dry_run: bool,
    wait_s: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move replicas of a topic to other nodes, or have more or fewer of them.

    New replicas fetch all records first; old ones go when the new ones are in sync. Reading and writing go on.

    \b
    Examples:
      penstock topic reassign flights --replication-factor 3 --wait 60
      penstock topic reassign flights --off-node 4
      penstock topic reassign flights --partition 0 --to 2,3,1
      penstock topic reassign flights --status
      penstock topic reassign flights --cancel
    """
    asked = [replication_factor is not None, off_node is not None, target is not None, cancel, status]
    if asked.count(True) != 1:
        raise CommandError(
            "say what to do: one of --replication-factor, --off-node, --to, --cancel, --status",
            ExitCode.USAGE,
        )
    client = admin_client(bootstrap)
    partitions = dict(topic_metadata(client, bootstrap, topic).partitions)
    unknown = sorted(set(chosen) - set(partitions))
    if unknown:
        raise CommandError(
            f"topic {topic!r} has no partition {unknown[0]}; see `penstock topic describe {topic}`"
        )
    mine = sorted(chosen or partitions)
    if status:
        _show(_ongoing(bootstrap, topic, mine), as_json)
        return
    plan: dict[tuple[str, int], list[int] | None]
    if cancel:
        plan = {(topic, o.partition): None for o in _ongoing(bootstrap, topic, mine)}
    else:
        about = ask(lambda: client.describe_cluster(request_timeout=CALL_TIMEOUT_S), "the cluster").result()
        racks = {node.id: node.rack or "" for node in about.nodes}
        plan = _plan(
            cluster_metadata(client, bootstrap), racks, topic, mine, replication_factor, off_node, target
        )
    rows = [
        {"partition": n, "from": list(partitions[n].replicas), "to": "as before" if to is None else to}
        for (_, n), to in plan.items()
    ]
    if plan and not dry_run:
        refused = wire.alter_reassignments(bootstrap, plan)
        if refused:
            place, why = next(iter(refused.items()))
            raise CommandError(f"{place[0]}-{place[1]}: {why}")
        _wait_until_done(bootstrap, topic, mine, wait_s)
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("partition", "from", "to"), [list(row.values()) for row in rows])
    else:
        note("nothing is to be moved")
    if dry_run:
        note("nothing was changed; leave --dry-run out to do it")


def _named(place: Any) -> str:
    return f"partition {place.partition} of {place.topic!r}"


def _offsets(client: Any, places: list[Any], spec: Any) -> dict[int, int]:
    """By partition, what a spec of ListOffsets finds; -1 where a timestamp finds nothing."""
    answers = ask_each(
        lambda left: client.list_offsets(dict.fromkeys(left, spec), request_timeout=CALL_TIMEOUT_S),
        places,
        _named,
    )
    return {place.partition: answer.result().offset for place, answer in answers.items()}


def _plan(
    cluster: Any,
    racks: dict[int, str],
    topic: str,
    mine: list[int],
    factor: int | None,
    off_node: int | None,
    target: str | None,
) -> dict[tuple[str, int], list[int] | None]:
    """Wanted replicas of the partitions that change."""
    partitions = cluster.topics[topic].partitions
    load: Counter[int] = Counter(
        n for t in cluster.topics.values() for p in t.partitions.values() for n in p.replicas
    )
    nodes = {node: rack for node, rack in racks.items() if node != off_node}
    planner = Planner(nodes, load, {n: p.replicas for n, p in partitions.items()})
    plan: dict[tuple[str, int], list[int] | None] = {}
    for number in mine:
        now = list(partitions[number].replicas)
        if factor is not None:
            wanted = planner.with_factor(now, partitions[number].leader, factor, partitions[number].isrs)
        elif off_node is not None:
            wanted = planner.without(now, off_node)
        else:
            wanted = _ids(target or "")
        if wanted != now:
            plan[topic, number] = wanted
    return plan


def _ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() for word in words):
        raise CommandError(f"--to {text!r}: write node ids with commas, as 1,2,3", ExitCode.USAGE)
    return [int(word) for word in words]


def _ongoing(bootstrap: str, topic: str, partitions: list[int]) -> list[wire.Ongoing]:
    found = wire.ongoing_reassignments(bootstrap)
    return [o for o in found if o.topic == topic and o.partition in partitions]


def _show(ongoing: list[wire.Ongoing], as_json: bool) -> None:
    rows: list[dict[str, Any]] = [
        {"partition": o.partition, "replicas": o.replicas, "adding": o.adding, "removing": o.removing}
        for o in ongoing
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("partition", "replicas", "adding", "removing"), [list(row.values()) for row in rows])
    else:
        note("nothing is being moved")


def _wait_until_done(bootstrap: str, topic: str, partitions: list[int], wait_s: int) -> None:
    deadline_s = time.monotonic() + wait_s
    while wait_s and (left := _ongoing(bootstrap, topic, partitions)):
        if time.monotonic() >= deadline_s:
            raise CommandError(
                f"{len(left)} partition(s) are still being moved after {wait_s} s; they go on: see --status"
            )
        time.sleep(POLL_INTERVAL_S)


COMMANDS = (alter, add_partitions, trim, reassign)
