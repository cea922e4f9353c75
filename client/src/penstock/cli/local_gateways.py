"""The gateways of the local cluster, for commands to which nobody names an address.

Theory: who has started a cluster in a directory means that one, on whatever ports it is. What is found
counts only while the process of the gateway is there; a cluster whose gateways are down is not asked but named
in what is said when nobody answers at the default address either.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

DIRECTORY_DEFAULT: Final = ".penstock"
_DIRECTORY: Final = f"{__name__}.directory"


def _remember(ctx: click.Context, _parameter: click.Parameter, value: Path) -> None:
    ctx.meta[_DIRECTORY] = value


directory_option = click.option(
    "--dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY_DEFAULT,
    envvar="PENSTOCK_LOCAL_DIR",
    show_default=True,
    # Known before the options whose defaults come from it.
    is_eager=True,
    expose_value=False,
    callback=_remember,
    help="Local cluster whose gateways are taken where no address is named. Also PENSTOCK_LOCAL_DIR.",
)


def directory_of(ctx: click.Context) -> Path:
    """What `--dir` of this command says."""
    found: Any = ctx.meta[_DIRECTORY]
    return Path(found)


@dataclass(frozen=True)
class LocalGateways:
    """Addresses of the gateways that run, and what to do if none is there or none of them answers."""

    addresses: list[str]
    hint: str


def local_gateways(directory: Path, use: str) -> LocalGateways:
    """The gateways of the cluster in `directory` whose processes exist now. `use`: `kafka` or `grpc` port.

    Raises CommandError where the cluster's file cannot be read.
    """
    from penstock.local.store import Store

    if not Store(directory).exists():
        return LocalGateways([], "`penstock local up` starts a local cluster")
    from penstock.local.cluster import LocalCluster

    cluster = LocalCluster(directory)
    addresses = cluster.gateways_alive(use)
    if addresses:
        return LocalGateways(addresses, f"see `penstock local status --dir {directory}`")
    return LocalGateways(
        [],
        f"no gateway of the cluster in {cluster.directory} runs: "
        f"`penstock local start --all --dir {directory}` starts them",
    )
