"""`--client-config`: how a command comes in at the cluster that it talks to.

Theory: who has started a secure cluster in a directory is its admin: without the option the file that `local up
--secure` wrote there is taken, for addresses of that cluster and for no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from penstock.connector import Connector

_CHOSEN: Final = f"{__name__}.chosen"


@dataclass(frozen=True)
class ChosenFile:
    """The client file that the user named."""

    connector: Connector
    is_on_command_line: bool
    """Not in the environment."""


def _read(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    if value is None or ctx.resilient_parsing:
        return
    from penstock import connector

    source = ctx.get_parameter_source(parameter.name or "")
    ctx.meta[_CHOSEN] = ChosenFile(connector.load(value), source is ParameterSource.COMMANDLINE)


client_config_option = click.option(
    "--client-config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar="PENSTOCK_CLIENT_CONFIG",
    # Known before the addresses, which may come from it.
    is_eager=True,
    expose_value=False,
    callback=_read,
    help="How to come in, as a Kafka client's properties (security.protocol, sasl.mechanism, sasl.username, "
    "sasl.password, ssl.ca.location, bootstrap.servers). Also PENSTOCK_CLIENT_CONFIG. "
    "By default that of the secure local cluster in --dir, for its addresses.",
)


def client_file_of(ctx: click.Context) -> ChosenFile | None:
    """What `--client-config` of this command says."""
    found: Any = ctx.meta.get(_CHOSEN)
    return found if isinstance(found, ChosenFile) else None


def own_connector(directory: Path, addresses: str) -> Connector | None:
    """That of the secure local cluster in `directory` if all of these addresses are its own."""
    from penstock.local.store import Store

    store = Store(directory)
    if not store.exists():
        return None
    state = store.load()
    if not state.secure:
        return None
    from penstock import connector
    from penstock.local import secure
    from penstock.local.plan import HOST, SECURE_HOST

    hosts = (HOST, SECURE_HOST)
    own = {f"{host}:{port}" for m in state.members for port in m.ports.values() for host in hosts}
    if not {word.strip() for word in addresses.split(",")} <= own:
        return None
    return connector.load(secure.admin_file(store.directory))
