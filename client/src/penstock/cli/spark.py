"""`penstock spark`: jobs on Spark, what checkpoints hold, and what sinks have written.

The jobs are functions of the package penstock-spark (`pyspark_penstock.jobs`), which is imported by name when one runs:
the client needs neither it nor PySpark.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from penstock.cli.group import lags_of
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_json
from penstock.cli.spark_checkpoint import read_checkpoint
from penstock.cli.spark_options import common_options, isolation_option, job_options
from penstock.cli.spark_run import Cluster, run_job
from penstock.cli.spark_sinks import sink
from penstock.cli.spark_writing import repartition, replay, windowed

COMPACTED = {"auto": None, "yes": True, "no": False}


@click.group("spark")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Spark: jobs on topics, the offsets that checkpoints hold, and exactly-once sinks."""


COMMAND.add_command(sink)


@COMMAND.group("run")
def run() -> None:
    """Run a job on Spark: archive a topic, audit it, report on it, or write another one from it.

    \b
    Exit codes: 0 done, and nothing found; 1 it failed, and the line on stderr says why; 2 a bad option;
    3 no gateway could be reached; 4 there are findings; 130 interrupted.
    """


@run.command("archive")
@click.option("--topic", required=True, help="What is archived.")
@click.option(
    "--to", required=True, metavar="DIR", help="Where the archive is; driver and executors see it alike."
)
@click.option(
    "--by", type=click.Choice(["date", "hour"]), default="date", show_default=True, help="How it is divided."
)
@click.option("--compact", is_flag=True, help="Join small files afterwards.")
@click.option(
    "--format", "form", type=click.Choice(["parquet", "iceberg"]), default="parquet", show_default=True,
    help="iceberg: the files are a table too.",
)  # fmt: skip
@click.option("--table", default="", metavar="NS.T", help="The table; with --format iceberg.")
@click.option(
    "--catalog",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with the name and the properties of the table's catalog; with --format iceberg.",
)
@isolation_option
@job_options
def archive(
    topic: str,
    to: str,
    by: str,
    compact: bool,
    form: str,
    table: str,
    catalog: Path | None,
    isolation: str,
    **common: Any,
) -> int:
    """Archive a topic as Parquet files by date (UTC), each record once; the next run adds what is new.

    DIR/_penstock/manifest says what is in the archive: a micro-batch is, once its manifest is there. Read it with
    pyspark_penstock.jobs.read_archive, or name the files of the manifests to any reader of Parquet.

    --format iceberg adds each micro-batch as a snapshot to a table of Iceberg, which is made where it is not there and
    refers to the archive's files. It takes pip install 'penstock-spark[iceberg]', and goes with no --compact.

    \b
    Examples:
      penstock spark run archive --topic flights --to /data/flights
      penstock spark run archive --topic flights --to /data/flights --by hour --compact --json
      penstock spark run archive --topic t --to /data/t --format iceberg --table lake.t --catalog lake.toml
    """
    if form == "iceberg" and (not table or catalog is None):
        raise click.UsageError("--format iceberg takes --table and --catalog")
    if form != "iceberg" and (table or catalog is not None):
        raise click.UsageError("--table and --catalog go with --format iceberg")
    if form == "iceberg" and compact:
        raise click.UsageError("--compact does not go with --format iceberg: the table refers to the files")
    wanted = {
        "topic": topic,
        "to": to,
        "by": by,
        "compact": compact,
        "format": form,
        "table": table,
        "catalog": "" if catalog is None else str(catalog.absolute()),
        "isolation": isolation,
    }
    return run_job("archive", wanted, Cluster.of(click.get_current_context(), common))


@run.command("audit")
@click.option("--topic", required=True, help="What is audited.")
@click.option("--against", metavar="TOPIC", default="", help="Compare with this topic, a copy.")
@click.option("--archive", metavar="DIR", default="", help="Compare with this archive.")
@click.option(
    "--keys-moved", is_flag=True, help="The copy may have records in other partitions; with --against."
)
@click.option(
    "--compacted",
    type=click.Choice(COMPACTED),
    default="auto",
    show_default=True,
    help="Whether the topic is, or was, compacted. To ask takes ALTER on the cluster.",
)
@isolation_option
@job_options
def audit(
    topic: str,
    against: str,
    archive: str,
    keys_moved: bool,
    compacted: str,
    isolation: str,
    **common: Any,
) -> int:
    """Explain every offset of a topic; compare it with a copy, or with its archive.

    An offset is a record, a marker of a transaction, aborted, compacted away, or lost. CRCs are checked, producers'
    sequences followed. Nothing is written. Exit code 4: something was found.

    \b
    Examples:
      penstock spark run audit --topic flights
      penstock spark run audit --topic flights --against flights-copy --keys-moved
      penstock spark run audit --topic flights --archive /data/flights --json
    """
    if against and archive:
        raise click.UsageError("--against and --archive exclude each other")
    if keys_moved and not against:
        raise click.UsageError("--keys-moved goes with --against")
    wanted = {
        "topic": topic,
        "against": against,
        "archive": archive,
        "keys_moved": keys_moved,
        "compacted": COMPACTED[compacted],
        "isolation": isolation,
    }
    return run_job("audit", wanted, Cluster.of(click.get_current_context(), common))


@run.command("report")
@click.option("--topic", required=True, help="What the report is on.")
@click.option("--out", required=True, metavar="FILE", help="The HTML file to write.")
@click.option(
    "--compacted",
    type=click.Choice(COMPACTED),
    default="auto",
    show_default=True,
    help="Whether the topic is, or was, compacted. To ask takes ALTER on the cluster.",
)
@isolation_option
@common_options
@bootstrap_option
def report(topic: str, out: str, compacted: str, isolation: str, bootstrap: str, **common: Any) -> int:
    """Write what a topic is like into one HTML file: rates, balance, sizes, keys, codecs, groups' lag.

    It needs no network to be looked at, and its numbers are the audit's. Groups are asked for at --bootstrap, or at
    the local cluster where no gateway is named. Exit code 4: the audit has found something.

    \b
    Examples:
      penstock spark run report --topic flights --out flights.html
      penstock spark run report --topic flights --out flights.html --gateway h:9094 --bootstrap h:9092
    """
    ctx = click.get_current_context()
    is_named = ctx.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT
    if is_named:
        check_reachable(bootstrap)
    cluster = Cluster.of(ctx, common, bootstrap if is_named else None)
    groups = lags_of(bootstrap, topic) if is_named or not common["gateway"] else None
    wanted = {"topic": topic, "out": out, "compacted": COMPACTED[compacted], "isolation": isolation}
    return run_job("report", wanted | {"groups": groups}, cluster)


@COMMAND.command("offsets")
@click.option(
    "--checkpoint",
    required=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Checkpoint of a streaming query, of Penstock's source or of the Kafka connector.",
)
@json_option
def offsets(checkpoint: Path, as_json: bool) -> None:
    """Print where a streaming query stands, as startingOffsets of a new one: a line per source.

    It is the end of the last committed micro-batch. Read from files; neither Spark nor a cluster is needed.

    \b
    Examples:
      penstock spark offsets --checkpoint /data/checkpoints/flights
      penstock spark offsets --checkpoint /data/checkpoints/flights --json
    """
    import json

    found = read_checkpoint(checkpoint)
    if as_json:
        print_json(found.as_dict())
        return
    note(f"query {found.query_id or 'unknown'}, micro-batch {found.batch_id}")
    for source in found.sources:
        if source.starting_offsets is None:
            note(f"source {source.index} is none of Kafka's or Penstock's; left out")
        else:
            click.echo(json.dumps(source.starting_offsets))


for job in (repartition, replay, windowed):
    run.add_command(job)
