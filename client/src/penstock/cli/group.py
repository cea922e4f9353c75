"""`penstock group`: list, describe with lag, reset the offsets of, and delete consumer groups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click

from penstock.cli.asking import ask, ask_each
from penstock.cli.kafka import (
    CALL_TIMEOUT_S,
    PAUSE_S,
    admin_client,
    bootstrap_option,
    client_config,
    json_option,
    may_be_asked_again,
    topic_metadata,
)
from penstock.cli.output import note, print_facts, print_json, print_table
from penstock.errors import CommandError, ExitCode

Place = tuple[str, int]
"""Topic and partition."""

READ_TIMEOUT_S = 10.0
"""How long records are looked for to tell a lag in seconds."""


@click.group("group")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """List, describe, reset and delete consumer groups."""


@COMMAND.command("list")
@bootstrap_option
@json_option
def list_groups(bootstrap: str, as_json: bool) -> None:
    """List consumer groups.

    \b
    Examples:
      penstock group list
      penstock group list --json | jq -r '.[].group'
    """
    found = _groups(admin_client(bootstrap))
    rows = [
        {"group": g.group_id, "state": g.state.name.lower(), "type": g.type.name.lower() if g.type else ""}
        for g in sorted({g.group_id: g for g in found.valid}.values(), key=lambda g: g.group_id)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(("group", "state", "type"), [list(row.values()) for row in rows])
    else:
        note("there are no consumer groups")


@COMMAND.command()
@click.argument("group")
@bootstrap_option
@json_option
def describe(group: str, bootstrap: str, as_json: bool) -> None:
    """Members of a group, its offsets, and how far it is behind.

    Lag is told in records, and in seconds: the time of the newest record less that of the last committed
    one ("-" where nothing was committed or the record is gone).

    \b
    Examples:
      penstock group describe billing
      penstock group describe billing --json | jq '[.partitions[].lag] | add'
    """
    client = admin_client(bootstrap)
    about = ask(
        lambda: client.describe_consumer_groups([group], request_timeout=CALL_TIMEOUT_S)[group],
        f"group {group!r}",
    ).result()
    offsets = _committed(client, group)
    if about.state.name == "DEAD" and not offsets:
        raise CommandError(f"group {group!r} does not exist; see `penstock group list`")
    owners = {
        (p.topic, p.partition): m.client_id
        for m in about.members
        if m.assignment is not None
        for p in m.assignment.topic_partitions
    }
    places = sorted(offsets.keys() | owners.keys())
    ends = _offsets(client, places, "latest")
    behind_s = _lag_s(bootstrap, {p: offsets[p] for p in places if p in offsets}, ends)
    rows = [
        {
            "topic": place[0],
            "partition": place[1],
            "committed": offsets.get(place),
            "end": ends.get(place),
            "lag": ends[place] - offsets[place] if place in offsets and place in ends else None,
            "lag_s": behind_s.get(place),
            "member": owners.get(place),
        }
        for place in places
    ]
    state = about.state.name.lower()
    if as_json:
        print_json({"group": group, "state": state, "members": len(about.members), "partitions": rows})
        return
    print_facts([("group", group), ("state", state), ("members", len(about.members))])
    if rows:
        print_table(
            ("topic", "partition", "committed", "end", "lag", "lag in s", "member"),
            [["-" if value is None else value for value in row.values()] for row in rows],
        )


@COMMAND.command("reset-offsets")
@click.argument("group")
@click.option("--topic", "-t", "topics", multiple=True, help="Topics to reset. Default: all of the group.")
@click.option("--to-earliest", is_flag=True, help="To the first record.")
@click.option("--to-latest", is_flag=True, help="Behind the last record.")
@click.option("--to-offset", type=click.IntRange(0), help="To that offset.")
@click.option(
    "--to-timestamp", type=click.IntRange(0), help="To the first record at or after it, ms since 1970."
)
@click.option("--shift-by", type=int, help="By that many records, forward or (negative) back.")
@click.option("--execute", is_flag=True, help="Do it. Without it the new offsets are only shown.")
@click.option("--dry-run", is_flag=True, help="Only show the new offsets (the default).")
@bootstrap_option
@json_option
def reset_offsets(
    group: str,
    topics: tuple[str, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_timestamp: int | None,
    shift_by: int | None,
    execute: bool,
    dry_run: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Move the committed offsets of a group that has no members.

    \b
    Examples:
      penstock group reset-offsets billing --to-earliest
      penstock group reset-offsets billing -t invoices --shift-by -100 --execute
    """
    given = [to_earliest, to_latest, to_offset is not None, to_timestamp is not None, shift_by is not None]
    if sum(given) != 1:
        raise CommandError(
            "say where to: one of --to-earliest, --to-latest, --to-offset, --to-timestamp, --shift-by",
            ExitCode.USAGE,
        )
    client = admin_client(bootstrap)
    committed = _committed(client, group)
    places = _places(client, bootstrap, group, topics, committed)
    first, end = _offsets(client, places, "earliest"), _offsets(client, places, "latest")
    wanted: dict[Place, int] = {}
    if to_timestamp is not None:
        wanted = _offsets(client, places, to_timestamp)
    new: dict[Place, int] = {}
    for place in places:
        target = first[place]
        if to_latest:
            target = end[place]
        elif to_offset is not None:
            target = to_offset
        elif to_timestamp is not None:
            found = wanted.get(place, -1)
            target = found if found >= 0 else end[place]
        elif shift_by is not None:
            target = committed.get(place, first[place]) + shift_by
        new[place] = min(max(target, first[place]), end[place])
    if execute and not dry_run:
        _commit(client, group, new)
    rows = [{"topic": p[0], "partition": p[1], "from": committed.get(p), "to": new[p]} for p in sorted(new)]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("topic", "partition", "from", "to"),
        [["-" if value is None else value for value in row.values()] for row in rows],
    )
    if not execute or dry_run:
        note("nothing was changed; add --execute to do it")


@COMMAND.command()
@click.argument("groups", nargs=-1, required=True)
@bootstrap_option
def delete(groups: tuple[str, ...], bootstrap: str) -> None:
    """Delete groups that have no members, and their offsets.

    \b
    Examples:
      penstock group delete billing
      penstock group delete billing audit
    """
    from confluent_kafka import KafkaError

    client = admin_client(bootstrap)
    answers = ask_each(
        lambda names: client.delete_consumer_groups(names, request_timeout=CALL_TIMEOUT_S),
        groups,
        lambda name: f"group {name!r}",
    )
    for name, answer in answers.items():
        # A try of which nobody heard may have deleted what is not there now.
        if not (answer.repeats and answer.says(KafkaError.GROUP_ID_NOT_FOUND)):
            answer.result()
        note(f"deleted group {name}")


# -- asking --------------------------------------------------------------------------------


def lags_of(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """What every group has committed of a topic, and how far that is behind, in records. Raises CommandError."""
    client = admin_client(bootstrap)
    found = []
    for group in sorted({g.group_id for g in _groups(client).valid}):
        offsets = {place: offset for place, offset in _committed(client, group).items() if place[0] == topic}
        ends = _offsets(client, sorted(offsets), "latest")
        found += [
            {
                "group": group,
                "partition": place[1],
                "committed": offsets[place],
                "end": ends[place],
                "lag": ends[place] - offsets[place],
            }
            for place in sorted(offsets)
        ]
    return found


def _groups(client: Any) -> Any:
    """Of every broker; again while one of them goes."""
    until_s = time.monotonic() + CALL_TIMEOUT_S
    while True:
        found = ask(client.list_consumer_groups, "the groups").result()
        if not found.errors:
            return found
        passing = all(may_be_asked_again(error.args[0].code()) for error in found.errors)
        if not passing or time.monotonic() >= until_s:
            raise CommandError(f"the groups: {found.errors[0]}", ExitCode.UNREACHABLE)
        time.sleep(PAUSE_S)


def _committed(client: Any, group: str) -> dict[Place, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions

    asked = [ConsumerGroupTopicPartitions(group)]
    found = ask(
        lambda: client.list_consumer_group_offsets(asked, request_timeout=CALL_TIMEOUT_S)[group],
        f"group {group!r}",
    ).result()
    return {(p.topic, p.partition): p.offset for p in found.topic_partitions if p.offset >= 0}


def _commit(client: Any, group: str, new: Mapping[Place, int]) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    wanted = [TopicPartition(topic, partition, offset) for (topic, partition), offset in new.items()]
    asked = [ConsumerGroupTopicPartitions(group, wanted)]
    done = ask(
        lambda: client.alter_consumer_group_offsets(asked, request_timeout=CALL_TIMEOUT_S)[group],
        f"group {group!r}",
    ).result()
    for one in done.topic_partitions:
        if one.error is not None:
            raise CommandError(
                f"group {group!r}: {one.topic}-{one.partition}: {one.error.str()}; stop its members first"
            )


def _places(
    client: Any, bootstrap: str, group: str, topics: Sequence[str], committed: Mapping[Place, int]
) -> list[Place]:
    names = sorted(set(topics) or {topic for topic, _ in committed})
    if not names:
        raise CommandError(f"group {group!r} has no offsets; name topics with --topic", ExitCode.USAGE)
    return [
        (name, number)
        for name in names
        for number in sorted(topic_metadata(client, bootstrap, name).partitions)
    ]


def _offsets(client: Any, places: Sequence[Place], which: str | int) -> dict[Place, int]:
    """Offsets of "earliest", "latest" or a timestamp; -1 where a timestamp finds nothing."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    if not places:
        return {}
    make: Any = OffsetSpec
    if isinstance(which, str):
        wanted = make.earliest() if which == "earliest" else make.latest()
    else:
        wanted = make.for_timestamp(which)
    answers = ask_each(
        lambda left: client.list_offsets(dict.fromkeys(left, wanted), request_timeout=CALL_TIMEOUT_S),
        [TopicPartition(topic, partition) for topic, partition in places],
        lambda place: f"topic {place.topic!r}",
    )
    return {(place.topic, place.partition): answer.result().offset for place, answer in answers.items()}


def _lag_s(bootstrap: str, committed: Mapping[Place, int], ends: Mapping[Place, int]) -> dict[Place, float]:
    """By partition: time of the newest record less that of the last committed one."""
    lag: dict[Place, float] = {p: 0.0 for p, offset in committed.items() if offset >= ends.get(p, 0)}
    late = {p: offset for p, offset in committed.items() if 0 < offset < ends.get(p, 0)}
    last = _timestamps(bootstrap, {p: offset - 1 for p, offset in late.items()})
    newest = _timestamps(bootstrap, {p: ends[p] - 1 for p in late})
    for place in last.keys() & newest.keys():
        lag[place] = round(max(0, newest[place] - last[place]) / 1000, 3)
    return lag


def _timestamps(bootstrap: str, at: Mapping[Place, int]) -> dict[Place, int]:
    """Timestamps in ms of the first records at or after these offsets, as far as they are found in time."""
    from confluent_kafka import Consumer, TopicPartition

    if not at:
        return {}
    settings = {
        "group.id": "penstock-cli-unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(client_config(bootstrap, **settings))
    found: dict[Place, int] = {}
    deadline_s = time.monotonic() + READ_TIMEOUT_S
    try:
        consumer.assign(
            [TopicPartition(topic, partition, offset) for (topic, partition), offset in at.items()]
        )
        while len(found) < len(at) and time.monotonic() < deadline_s:
            message = consumer.poll(0.2)
            if message is None or message.error() is not None:
                continue
            topic, partition = message.topic(), message.partition()
            if topic is not None and partition is not None:
                found.setdefault((topic, partition), message.timestamp()[1])
    finally:
        consumer.close()
    return found
