"""Options that jobs on Spark have in common."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from penstock.cli.kafka import json_option
from penstock.cli.local_gateways import directory_option

Command = TypeVar("Command", bound=Callable[..., Any])

ISOLATIONS = ("read_uncommitted", "read_committed")


def job_options(command: Command) -> Command:
    """What every job takes."""
    return directory_option(common_options(command))


def common_options(command: Command) -> Command:
    """The same without `--dir`, for a job that has it from elsewhere."""
    for option in reversed(
        (
            click.option(
                "--gateway",
                envvar="PENSTOCK_GATEWAY",
                metavar="HOST:PORT[,...]",
                help="gRPC address of one or more gateways. Also PENSTOCK_GATEWAY. By default those of the local "
                "cluster in --dir, else 127.0.0.1:9094.",
            ),
            click.option(
                "--master",
                default="local[*]",
                show_default=True,
                envvar="PENSTOCK_SPARK_MASTER",
                help="Where Spark runs: its master. Also PENSTOCK_SPARK_MASTER.",
            ),
            click.option(
                "--conf", "confs", multiple=True, metavar="K=V", help="A setting of Spark. Repeatable."
            ),
            click.option(
                "--credentials-file",
                type=click.Path(dir_okay=False, path_type=Path),
                envvar="PENSTOCK_CLIENT_CONFIG",
                help="A client's properties, mode 0600: how driver and executors come in. Also PENSTOCK_CLIENT_CONFIG.",
            ),
            click.option(
                "--spark-log",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Keep what Spark itself says in this file.",
            ),
            json_option,
        )
    ):
        command = option(command)
    return command


def isolation_option(command: Command) -> Command:
    return click.option(
        "--isolation",
        type=click.Choice(ISOLATIONS),
        default=ISOLATIONS[0],
        show_default=True,
        help="read_committed leaves out what transactions have aborted, and stops at the first undecided one.",
    )(command)
