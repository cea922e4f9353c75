"""`penstock topic`: create, list, describe, delete; what changes topics is in `topic_change` and `rebalance`."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli import topic_change, wire
from penstock.cli.asking import ask, ask_each
from penstock.cli.kafka import (
    CALL_TIMEOUT_S,
    admin_client,
    bootstrap_option,
    cluster_metadata,
    json_option,
    topic_metadata,
    was_lost,
)
from penstock.cli.output import note, print_facts, print_json, print_table
from penstock.cli.rebalance import set_replication_factor
from penstock.cli.replicas import under_replicated
from penstock.errors import CommandError, ExitCode


@click.group("topic")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Create, list, describe, change and delete topics."""


@COMMAND.command()
@click.argument("topic")
@click.option(
    "--partitions", "-p", type=click.IntRange(1, 20_000), help="Default: what the cluster says (1)."
)
@click.option(
    "--replication-factor",
    "-r",
    type=click.IntRange(1, 100),
    help="Default: 3, or the number of nodes if fewer.",
)
@click.option("--config", "-c", "configs", multiple=True, metavar="KEY=VALUE", help="A setting of the topic.")
@click.option("--if-not-exists", is_flag=True, help="A topic of that name is no error.")
@bootstrap_option
@json_option
def create(
    topic: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Create a topic.

    \b
    Examples:
      penstock topic create flights --partitions 6
      penstock topic create audit -p 3 -r 3 --config min.insync.replicas=2 --config retention.ms=604800000
    """
    from confluent_kafka import KafkaError, admin

    settings = _settings(configs)
    client = admin_client(bootstrap)
    new = admin.NewTopic(
        topic,
        num_partitions=partitions or -1,
        replication_factor=replication_factor or -1,
        config=settings,
    )
    answer = ask(
        lambda: client.create_topics([new], operation_timeout=CALL_TIMEOUT_S)[topic], f"topic {topic!r}"
    )
    if not answer.says(KafkaError.TOPIC_ALREADY_EXISTS):
        answer.result()
        created = True
    else:
        created = answer.repeats and _is_as_asked(client, bootstrap, new)
        if not (created or if_not_exists):
            raise _exists(topic) if answer.repeats else answer.error or _exists(topic)
    if as_json:
        print_json({"topic": topic, "created": created})
    else:
        note(f"created topic {topic}" if created else f"topic {topic} exists already")


@COMMAND.command("list")
@click.option("--internal", is_flag=True, help="Also topics whose names begin with two underscores.")
@bootstrap_option
@json_option
def list_topics(internal: bool, bootstrap: str, as_json: bool) -> None:
    """List topics.

    \b
    Examples:
      penstock topic list
      penstock topic list --json | jq -r '.[].topic'
    """
    found = cluster_metadata(admin_client(bootstrap), bootstrap).topics
    rows: list[dict[str, Any]] = []
    lacking = under_replicated(bootstrap, found)
    for name in sorted(found):
        if name.startswith("__") and not internal:
            continue
        parts = found[name].partitions.values()
        rows.append(
            {
                "topic": name,
                "partitions": len(parts),
                "replication_factor": max((len(part.replicas) for part in parts), default=0),
                "under_replicated": lacking[name],
                "leaderless": sum(part.leader < 0 for part in parts),
            }
        )
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("topic", "partitions", "replication factor", "under-replicated", "leaderless"),
            [list(row.values()) for row in rows],
        )
    else:
        note("there are no topics; make one with `penstock topic create NAME`")


@COMMAND.command()
@click.argument("topic")
@bootstrap_option
@json_option
def describe(topic: str, bootstrap: str, as_json: bool) -> None:
    """Partitions of a topic: leader, replicas, in-sync replicas, first and next offset.

    \b
    Examples:
      penstock topic describe flights
      penstock topic describe flights --json | jq '.partitions[].isr'
    """
    client = admin_client(bootstrap)
    found = topic_metadata(client, bootstrap, topic)
    offsets = _offsets(client, topic, list(found.partitions))
    partitions: list[dict[str, Any]] = [
        {
            "partition": number,
            "leader": part.leader if part.leader >= 0 else None,
            "replicas": list(part.replicas),
            "isr": sorted(part.isrs),
            "earliest": offsets[number][0],
            "latest": offsets[number][1],
        }
        for number, part in sorted(found.partitions.items())
    ]
    if as_json:
        print_json({"topic": topic, "partitions": partitions})
        return
    records = [row["latest"] - row["earliest"] for row in partitions if row["latest"] is not None]
    print_facts([("topic", topic), ("partitions", len(partitions)), ("offsets in use", f"{sum(records):,}")])
    click.echo()
    print_table(
        ("partition", "leader", "replicas", "isr", "earliest", "latest"),
        [list(row.values()) for row in partitions],
    )


@COMMAND.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("--if-exists", is_flag=True, help="A missing topic is no error.")
@bootstrap_option
def delete(topics: tuple[str, ...], if_exists: bool, bootstrap: str) -> None:
    """Delete topics and all their records.

    \b
    Examples:
      penstock topic delete flights
      penstock topic delete old-a old-b --if-exists
    """
    from confluent_kafka import KafkaError

    client = admin_client(bootstrap)
    answers = ask_each(
        lambda names: client.delete_topics(names, operation_timeout=CALL_TIMEOUT_S),
        topics,
        lambda name: f"topic {name!r}",
    )
    failed: CommandError | None = None
    for name, answer in answers.items():
        is_missing = answer.says(KafkaError.UNKNOWN_TOPIC_OR_PART)
        # A try of which nobody heard may have deleted what is not there now.
        if answer.error is None or (is_missing and answer.repeats):
            note(f"deleted topic {name}")
        elif not is_missing:
            failed = answer.error
        elif not if_exists:
            failed = CommandError(f"topic {name!r} does not exist; --if-exists makes that no error")
    if failed:
        raise failed


for _command in (*topic_change.COMMANDS, set_replication_factor):
    COMMAND.add_command(_command)


def _settings(words: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not key:
            raise CommandError(f"--config {word!r}: write it as KEY=VALUE", ExitCode.USAGE)
        settings[key] = value
    return settings


def _is_as_asked(client: Any, bootstrap: str, new: Any) -> bool:
    """Whether there is such a topic, as far as the gateway that is asked has heard."""
    found = cluster_metadata(client, bootstrap, new.topic).topics[new.topic]
    if found.error is not None:
        return False
    has = {each.name: each.value for each in wire.describe_configs(bootstrap, "topic", new.topic)}
    return (
        new.num_partitions in (-1, len(found.partitions))
        and all(new.replication_factor in (-1, len(part.replicas)) for part in found.partitions.values())
        and all(has.get(name) == value for name, value in new.config.items())
    )


def _exists(topic: str) -> CommandError:
    return CommandError(
        f"topic {topic!r} exists: a try that got no answer may have made it, or somebody else before; "
        f"see `penstock topic describe {topic}`"
    )


def _offsets(client: Any, topic: str, partitions: list[int]) -> dict[int, tuple[int | None, int | None]]:
    """First and next offset by partition; None where no leader could say."""
    from confluent_kafka import TopicPartition, admin

    specs: Any = admin.OffsetSpec

    def told(spec: Any) -> dict[int, int | None]:
        answers = ask_each(
            lambda left: client.list_offsets(dict.fromkeys(left, spec), request_timeout=CALL_TIMEOUT_S),
            [TopicPartition(topic, number) for number in partitions],
            lambda place: f"partition {place.partition} of {topic!r}",
            again_if=was_lost,
        )
        return {place.partition: a.value.offset if a.value else None for place, a in answers.items()}

    first, end = told(specs.earliest()), told(specs.latest())
    return {number: (first[number], end[number]) for number in partitions}
