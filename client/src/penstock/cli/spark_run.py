"""Runs a job of penstock-spark in a Spark session of its own, and shows what it says.

Rules: the gateway is asked for before Spark is started, which takes seconds. What Spark itself writes goes to a file,
so that stdout has the result alone and stderr our own lines.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli.client_files import own_connector
from penstock.cli.gateways import find_gateway
from penstock.cli.kafka import connector_of
from penstock.cli.local_gateways import directory_of, local_gateways
from penstock.cli.output import note, print_facts, print_json, print_table
from penstock.connector import PLAINTEXT, load
from penstock.errors import CommandError, ExitCode

FINDINGS: Final = 4
"""The exit code of a job that found something."""
_SHOWN: Final = ("records", "control", "aborted", "compacted", "lost", "unreadable", "crc_errors")


@dataclass(frozen=True)
class Cluster:
    """Where a job reads, and how it runs."""

    gateways: str
    credentials_file: str
    master: str
    confs: dict[str, str]
    spark_log: Path | None
    as_json: bool

    @classmethod
    def of(cls, ctx: click.Context, common: Mapping[str, Any], bootstrap: str | None = None) -> Cluster:
        """As the options say, with a gateway that answers, of the cluster at `bootstrap` if that is given.

        Raises CommandError.
        """
        confs = dict(_pair(text) for text in common["confs"])
        directory = directory_of(ctx)
        file: Path | None = common["credentials_file"]
        if file is not None:
            connector = load(file)
        elif bootstrap and not common["gateway"]:
            connector = connector_of(bootstrap)
        else:
            addresses = common["gateway"] or ",".join(local_gateways(directory, "grpc").addresses)
            connector = own_connector(directory, addresses) or PLAINTEXT
        if file is None and connector.file is not None:
            file = Path(connector.file.path)  # Spark's processes read it for themselves
        found = find_gateway(common["gateway"], bootstrap, directory, connector)
        return cls(
            common["gateway"] or found,
            "" if file is None else str(file.absolute()),
            common["master"],
            confs,
            common["spark_log"],
            common["as_json"],
        )


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise CommandError(f"--conf {text!r}: write it as K=V", ExitCode.USAGE)
    return name.strip(), value


def run_job(job: str, wanted: Mapping[str, Any], cluster: Cluster) -> int:
    """Runs it and shows the result; returns the exit code. Raises CommandError."""
    jobs, frame = _jobs()
    with _session(job, cluster) as spark:
        try:
            result = getattr(jobs, job)(
                spark,
                **wanted,
                gateway=cluster.gateways,
                credentials_file=cluster.credentials_file,
                progress=note,
            )
        except (click.Abort, KeyboardInterrupt):
            raise
        except Exception as error:
            if os.environ.get("PENSTOCK_DEBUG"):
                raise
            raise CommandError(frame.one_line(error), ExitCode(frame.exit_code(error))) from None
    _show(result, cluster.as_json)
    return int(ExitCode.OK) if result["ok"] else FINDINGS


def _jobs() -> tuple[Any, Any]:
    """The jobs, and what they have in common. Raises CommandError."""
    try:
        import_module("pyspark")
        return import_module("pyspark_penstock.jobs"), import_module("pyspark_penstock.jobs.frame")
    except ImportError as error:
        raise CommandError(
            f"jobs run on Spark ({error.name or error} is not installed): pip install penstock-spark"
        ) from None


@contextmanager
def _session(job: str, cluster: Cluster) -> Iterator[Any]:
    """A Spark session whose JVM and workers write to a file. Raises CommandError where it does not start."""
    sql: Any = import_module("pyspark.sql")
    if cluster.master.startswith("local"):
        # Spark starts its workers with the python3 of PATH, which needn't be the one that has the package.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = (
        sql.SparkSession.builder.master(cluster.master)
        .appName(f"penstock {job}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
    )
    for name, value in cluster.confs.items():
        builder = builder.config(name, value)
    with _written_to(cluster.spark_log) as log:
        try:
            with _outputs_to(log):
                spark = builder.getOrCreate()
        except Exception as error:
            last = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            raise CommandError(
                f"Spark does not start ({last[0]}); it needs Java 17 or later, and --master {cluster.master} to be "
                "there"
            ) from None
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _written_to(path: Path | None) -> Iterator[int]:
    """Descriptor of Spark's log."""
    with path.open("wb") if path is not None else tempfile.TemporaryFile() as file:
        yield file.fileno()


@contextmanager
def _outputs_to(descriptor: int) -> Iterator[None]:
    """Processes that are started meanwhile write to it; this one's own lines wait."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(os.dup(number), number) for number in (1, 2)]
    try:
        for _, number in kept:
            os.dup2(descriptor, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for copy, number in kept:
            os.dup2(copy, number)
            os.close(copy)


def _show(result: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    facts = [
        ("job", result["job"]),
        ("rows", result["rows"]),
        ("bytes", result["bytes"]),
        ("seconds", result["seconds"]),
        ("rows per second", result["rows_per_s"]),
    ]
    for name in ("windows", "late", "checkpoint", "sink"):
        if name in result:
            facts.append((name, result[name]))
    if "files_added" in result:
        facts.append(("files added", result["files_added"]))
    if "out" in result:
        facts.append(("written to", result["out"]))
    if "archive" in result:
        facts.append(("archive", f"{result['archive']['files']} files, {result['archive']['rows']} rows"))
    if "iceberg" in result:
        facts.append(
            ("table", f"{result['iceberg']['table']}, {result['iceberg']['snapshots_added']} snapshots added")
        )
    print_facts(facts)
    if rows := result.get("partitions"):
        click.echo()
        columns = ["partition", "first", "last", *_SHOWN]
        print_table(
            [name.replace("_", " ") for name in columns], [[row[name] for name in columns] for row in rows]
        )
    click.echo()
    if not result["findings"]:
        click.echo("nothing found")
        return
    print_table(
        ["kind", "topic", "partition", "from", "to", "count", "sample"],
        [
            [item[name] for name in ("kind", "topic", "partition", "from", "to", "count")]
            + [str(item["sample"][0]) if item["sample"] else ""]
            for item in result["findings"]
        ],
    )
