"""`penstock spark run` repartition, replay and windowed: the jobs that write topics, exactly once."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.spark_options import Command, job_options
from penstock.cli.spark_run import Cluster, run_job

POSITIVE = click.FloatRange(min=0, min_open=True)


def checkpoint_option(command: Command) -> Command:
    return click.option(
        "--checkpoint",
        default="",
        metavar="DIR",
        help="Where the next run finds how far this one got; driver and executors see it alike. By default a "
        "directory for this job in $XDG_STATE_HOME/penstock/spark, else ~/.local/state/penstock/spark.",
    )(command)


to_option = click.option("--to", required=True, metavar="TOPIC", help="What is written. It has to be there.")


@click.command("repartition")
@click.option("--topic", required=True, help="What is copied.")
@click.option(
    "--to",
    required=True,
    metavar="TOPIC",
    help="What is written. It has to be there, unless --partitions says how to make it.",
)
@click.option(
    "--partitions",
    type=click.IntRange(min=1, max=2**31 - 1),
    metavar="N",
    help="How many partitions the copy has. It is made with them where it is missing.",
)
@click.option(
    "--key",
    default="",
    metavar="SQL",
    help="The new key, over key, value, partition, offset, timestamp, headers.",
)
@checkpoint_option
@job_options
def repartition(topic: str, to: str, partitions: int | None, key: str, checkpoint: str, **common: Any) -> int:
    """Copy a topic into one with other partitions or another key, each record once.

    Committed records are copied, with their times and headers. Records of a key stay in order while the key stays. A
    run that was killed goes on where it was, and a later one copies what is new.

    \b
    Examples:
      penstock spark run repartition --topic flights --to flights-12 --partitions 12
      penstock spark run audit --topic flights --against flights-12 --keys-moved --isolation read_committed
      penstock spark run repartition --topic flights --to flights-by-day --key "date(timestamp)"
    """
    wanted = {"topic": topic, "to": to, "partitions": partitions or 0, "key": key, "checkpoint": checkpoint}
    return run_job("repartition", wanted, Cluster.of(click.get_current_context(), common))


@click.command("replay")
@click.option("--topic", default="", help="What is written once more.")
@click.option("--archive", default="", metavar="DIR", help="The same from an archive.")
@to_option
@click.option(
    "--since", default="", metavar="TIME", help="From records of this time: ISO 8601, or ms since 1970."
)
@click.option("--until", default="", metavar="TIME", help="Up to records before this time.")
@click.option("--rate", type=POSITIVE, metavar="R", help="So many records a second.")
@click.option("--speed", type=POSITIVE, metavar="X", help="In their own time, X times as fast.")
@click.option("--keep-partitions", is_flag=True, help="By the record's partition, not by its key.")
@click.option(
    "--run",
    "run_name",
    default="",
    metavar="NAME",
    help="A name for this replay: started again under it, one that was killed goes on.",
)
@checkpoint_option
@job_options
def replay(
    topic: str,
    archive: str,
    to: str,
    since: str,
    until: str,
    rate: float | None,
    speed: float | None,
    keep_partitions: bool,
    run_name: str,
    checkpoint: str,
    **common: Any,
) -> int:
    """Write records of a topic or an archive once more, to another topic, at a rate or in their own time.

    Each record is written once by a run; another run writes all of them again. With --run it has a name, under which
    one that was killed goes on where it was, and one that is done writes nothing. Records keep their times.

    \b
    Examples:
      penstock spark run replay --topic flights --to flights-test --rate 5000
      penstock spark run replay --topic flights --to flights-test --rate 5000 --run monday
      penstock spark run replay --archive /data/flights --to flights-test --since 2026-11-26T14:00:00Z --speed 10
    """
    if bool(topic) == bool(archive):
        raise click.UsageError("give --topic or --archive, one of them")
    if rate and speed:
        raise click.UsageError("--rate and --speed exclude each other")
    if checkpoint and not run_name:
        raise click.UsageError("--checkpoint goes with --run")
    wanted = {
        "topic": topic,
        "archive": archive,
        "to": to,
        "since": since,
        "until": until,
        "rate": rate or 0.0,
        "speed": speed or 0.0,
        "keep_partitions": keep_partitions,
        "run": run_name,
        "checkpoint": checkpoint,
    }
    return run_job("replay", wanted, Cluster.of(click.get_current_context(), common))


@click.command("windowed")
@click.option("--topic", required=True, help="What is counted: records whose values are JSON.")
@to_option
@click.option("--window", required=True, metavar="D", help="Length of a window: 30s, 10m, 1h, 1d.")
@click.option("--watermark", required=True, metavar="D", help="How much later than others a record may come.")
@click.option(
    "--group-by", required=True, metavar="FIELD", help="The field of the values that is counted by."
)
@click.option(
    "--schema", required=True, metavar="DDL", help="What the values have: 'carrier STRING, delay INT'."
)
@click.option("--available-now", is_flag=True, help="End where the topic ends now.")
@checkpoint_option
@job_options
def windowed(
    topic: str,
    to: str,
    window: str,
    watermark: str,
    group_by: str,
    schema: str,
    available_now: bool,
    checkpoint: str,
    **common: Any,
) -> int:
    """Count a topic's records by window of time and field, and write each window once it is closed.

    Windows go by the time of the records. It runs until it is interrupted, or with --available-now to the topic's
    present end, and goes on where it ended.

    \b
    Examples:
      penstock spark run windowed --topic flights --to flights-per-carrier --window 10m --watermark 5m \\
        --group-by carrier --schema "carrier STRING, delay INT"
    """
    wanted = {
        "topic": topic,
        "to": to,
        "window": window,
        "watermark": watermark,
        "group_by": group_by,
        "schema": schema,
        "available_now": available_now,
        "checkpoint": checkpoint,
    }
    return run_job("windowed", wanted, Cluster.of(click.get_current_context(), common))
