"""`penstock controller`: the quorum of controllers, and a new disk for one of them.

`list`, and `replace` with --controllers, talk to the controllers themselves, which Kafka's protocol does not reach,
through penstock-runtime (the extra `penstock[local]` brings it).
"""

from __future__ import annotations

import asyncio
import dataclasses
import getpass
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli import reach
from penstock.cli.admin import Admin
from penstock.cli.output import note, print_facts, print_json, print_table, spinner
from penstock.cli.planned import Asked, How, HowOf, carry_out, with_plan_options
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from penstock_runtime.controller_client import ControllerClient
    from penstock_runtime.security.tls_files import TlsFiles

ASK_TIMEOUT_S = 2.0
CALL_TIMEOUT_MS = 15_000
POLL_S = 0.1
VOTES_WITHIN_S = 60.0

R = TypeVar("R")

controllers_option = click.option(
    "--controllers",
    "-c",
    envvar="PENSTOCK_CONTROLLERS",
    metavar="HOST:PORT[,...]",
    help="gRPC addresses of controllers; one is enough to learn the others. Also PENSTOCK_CONTROLLERS. "
    "The default is those of the local cluster in --dir.",
)
directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=".penstock",
    envvar="PENSTOCK_LOCAL_DIR",
    show_default=True,
    help="Local cluster to take the addresses from. Also PENSTOCK_LOCAL_DIR.",
)
certificate_option = click.option(
    "--certificate",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="PENSTOCK_CERTIFICATE",
    metavar="DIR",
    help="Directory with cert.pem, key.pem and ca.pem of an admin (`penstock cert issue --role admin`), for "
    "controllers with [tls]. Also PENSTOCK_CERTIFICATE. By default that of the secure local cluster in --dir.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


@click.group("controller")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Controllers: who votes, who is behind, and a new disk for one that lost its own."""


@dataclass(frozen=True)
class Seen:
    """The quorum: what each controller says of itself, by id; None where none answers."""

    said: dict[int, Any]
    # The view of the active controller, or of who is furthest where none is active.
    best: Any

    @property
    def has_active(self) -> bool:
        return bool(self.best.active_controller_id == self.best.controller_id)

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for member in sorted(self.best.members, key=lambda m: m.controller_id):
            own = self.said.get(member.controller_id)
            directory_id = own.directory_id if own is not None else member.directory_id
            rows.append(
                {
                    "id": member.controller_id,
                    "address": member.grpc_address or None,
                    "raft_address": member.address,
                    "directory_id": directory_id.hex() or None,
                    "state": self._state(member, own),
                    "term": own.term if own is not None else None,
                    "log_index": own.last_log_index if own is not None else None,
                    "applied_index": own.applied_index if own is not None else None,
                    "lag": max(0, self.best.commit_index - own.applied_index) if own is not None else None,
                    "reason": (own.not_voting_reason or None) if own is not None else None,
                }
            )
        return rows

    def _state(self, member: Any, own: Any) -> str:
        if own is None:
            return "absent" if not member.reachable else "silent"
        if self.has_active and member.controller_id == self.best.controller_id:
            return "active"
        if own.voter:
            return "voter"
        return "catching up" if member.directory_id == own.directory_id else "not admitted"


@COMMAND.command("list")
@controllers_option
@certificate_option
@directory_option
@json_option
def list_controllers(
    controllers: str | None, certificate: Path | None, directory: Path, as_json: bool
) -> None:
    """Controllers of the quorum: state, data directory, term, log index, and how far behind.

    States: active; voter; catching up (admitted, its log is not there yet); not admitted
    (a new data directory, see `penstock controller replace`); silent (linked to the others,
    but does not answer here); absent. "lag" counts committed entries that it has not applied.

    \b
    Examples:
      penstock controller list
      penstock controller list --controllers ctl-1:5001,ctl-2:5001 --json
    """
    seen = with_client(controllers, certificate, directory, look)
    rows = seen.rows()
    if as_json:
        print_json(rows)
        return
    columns = ("id", "address", "state", "directory id", "term", "log index", "lag")
    names = ("id", "address", "state", "directory_id", "term", "log_index", "lag")
    print_table(columns, [[row[name] for name in names] for row in rows])
    for row in rows:
        if row["reason"]:
            note(row["reason"])


@COMMAND.command("replace")
@click.argument("controller_id", metavar="ID", type=click.IntRange(min=1))
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With --controllers: how long to wait until it votes, default 60; 0 only admits it. Else as --wait.",
)
@controllers_option
@certificate_option
@with_plan_options
def replace(
    how_of: HowOf,
    controller_id: int,
    timeout_s: float | None,
    controllers: str | None,
    certificate: Path | None,
) -> int:
    """Make controller ID a voter again with the new data directory that it runs with.

    For a controller that lost its disk or its machine: start it with the same controller_id and
    address and an empty data_dir. It copies the log, but neither votes nor stands, because its
    votes, and entries that it had acknowledged, are lost. This command admits the new directory
    by an entry of the log; the controller votes once its own log has reached that entry. The old
    directory is refused from then on.

    A majority of the other voters must be there, and the one to replace must run with its new
    directory. One that is alive with its own directory cannot be replaced.

    It is an operation, asked of a gateway: it is done once the controller votes. With --controllers
    the controllers are asked themselves, at once and without a plan: where no gateway answers, or the
    cluster's level knows no operations.

    \b
    Examples:
      penstock controller list                 state "not admitted" wants a replace
      penstock controller replace 3 --dry-run
      penstock controller replace 3 --yes --wait 60
      penstock controller replace 3 --controllers ctl-1:5001 --json
    """
    named = controllers or certificate
    how = how_of(changes=not named)
    if how.wait_s is None and timeout_s:
        how = dataclasses.replace(how, wait_s=timeout_s)
    if not named or how.where.gateways or how.where.bootstrap:
        with Admin.at(how.where) as admin:
            return carry_out(admin, Asked("controller-replace", {"controller_id": controller_id}), how)
    return _directly(how, controller_id, controllers, certificate, at_once=timeout_s == 0)


def _directly(
    how: How, controller_id: int, controllers: str | None, certificate: Path | None, *, at_once: bool
) -> int:
    """Ask the controllers themselves, who plan nothing."""
    for option, given in (("--dry-run", how.dry_run), ("--plan-id", how.plan_id), ("--watch", how.watch)):
        if given:
            raise CommandError(
                f"{option} needs a gateway: leave --controllers and --certificate out, or give --gateway HOST:PORT",
                ExitCode.USAGE,
            )
    timeout_s = 0.0 if at_once else how.wait_s if how.wait_s is not None else VOTES_WITHIN_S

    async def do(client: ControllerClient) -> dict[str, Any]:
        return await _replace(client, controller_id, timeout_s)

    with spinner(f"admitting controller {controller_id}"):
        facts = with_client(controllers, certificate, how.where.directory, do)
    if how.as_json:
        print_json(facts)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in facts.items()])
    if not facts["voter"] and timeout_s > 0:
        raise CommandError(
            f"controller {controller_id} is admitted, but does not vote after {timeout_s:g} s; "
            "its log may still be on its way: `penstock controller list` shows the lag"
        )
    return ExitCode.OK


async def _replace(client: ControllerClient, controller_id: int, timeout_s: float) -> dict[str, Any]:
    from penstock_core.errors import PenstockError
    from penstock_proto.v1 import controller_pb2 as pb

    seen = await look(client)
    member = next((m for m in seen.best.members if m.controller_id == controller_id), None)
    connected = member.connected_directory_id if member is not None else b""
    if member is not None and connected and connected == member.directory_id:
        # So that only a repetition of this very call counts as done already.
        connected = b""
    request = pb.ReplaceControllerRequest(
        controller_id=controller_id, directory_id=connected, principal=f"cli:{user_name()}"
    )
    try:
        reply = await client.call("ReplaceController", request, CALL_TIMEOUT_MS)
    except PenstockError as error:
        raise CommandError(
            f"{error.message}; a majority of the controllers must run to replace one", ExitCode.UNREACHABLE
        ) from None
    if reply.error.code:
        raise CommandError(reply.error.message)
    began = time.monotonic()
    voter = await _votes(client, controller_id)
    while not voter and time.monotonic() - began < timeout_s:
        await asyncio.sleep(POLL_S)
        voter = await _votes(client, controller_id)
    return {
        "controller_id": controller_id,
        "old_directory_id": reply.old_directory_id.hex() or None,
        "new_directory_id": reply.new_directory_id.hex(),
        "version": reply.version,
        "voter": voter,
    }


async def _votes(client: ControllerClient, controller_id: int) -> bool:
    own = (await look(client)).said.get(controller_id)
    return own is not None and bool(own.voter)


async def look(client: ControllerClient) -> Seen:
    """Ask every controller; addresses that only others know of are asked too."""
    answers: dict[str, Any] = {}
    addresses = list(client.addresses)
    while new := [a for a in addresses if a not in answers]:
        results = await asyncio.gather(*(_describe(client, a) for a in new))
        answers.update(zip(new, results, strict=True))
        for answer in results:
            if answer is not None:
                addresses += [m.grpc_address for m in answer.members if m.grpc_address]
    said = {a.controller_id: a for a in answers.values() if a is not None}
    if not said:
        seen = await asyncio.gather(*(asyncio.to_thread(reach.look_for_grpc, a) for a in answers))
        raise CommandError(
            f"no controller answers ({'; '.join(_why(problem) for problem in seen)}); are they running, and is "
            "--controllers right?",
            ExitCode.UNREACHABLE,
        )
    best = max(
        said.values(),
        key=lambda a: (a.active_controller_id == a.controller_id, a.term, a.commit_index),
    )
    return Seen(said, best)


async def _describe(client: ControllerClient, address: str) -> Any:
    import grpc.aio

    from penstock_proto.v1 import controller_pb2 as pb

    try:
        return await client.stub(address).DescribeQuorum(pb.DescribeQuorumRequest(), timeout=ASK_TIMEOUT_S)
    except grpc.aio.AioRpcError:
        return None


def _why(seen: reach.Problem) -> str:
    """What is wrong at an address where no controller answered."""
    if seen.speaks is reach.Speaks.GRPC:
        return f"{seen.address}: a gRPC server that is no controller, or does not answer"
    if seen.speaks in (reach.Speaks.TLS, reach.Speaks.NOTHING):
        return f"{seen}; controllers with [tls] want --certificate DIR with an admin's"
    return str(seen)


def with_client(
    controllers: str | None,
    certificate: Path | None,
    directory: Path,
    do: Callable[[ControllerClient], Awaitable[R]],
) -> R:
    """Run `do` with a client of the controllers; errors in plain words."""
    try:
        from penstock_core.errors import PenstockError
        from penstock_runtime.controller_client import ControllerClient
        from penstock_runtime.grpc_tools import ChannelPool
    except ImportError:
        raise CommandError(
            "`penstock controller` needs penstock-runtime; install it with `pip install 'penstock[local]'`"
        ) from None
    addresses = _addresses(controllers, directory)
    if certificate is None and not controllers:
        certificate = _own_certificate(directory)
    tls = None if certificate is None else _admin(certificate)

    async def run() -> R:
        channels = ChannelPool(tls=tls)
        try:
            return await do(ControllerClient(addresses, "cli", channels))
        finally:
            await channels.close()

    try:
        return asyncio.run(run())
    except PenstockError as error:
        raise CommandError(error.message) from None


def _admin(directory: Path) -> TlsFiles:
    from penstock_runtime.addresses import StartupError
    from penstock_runtime.security.role_tls import RoleTls
    from penstock_runtime.security.tls_files import TlsFiles

    files = {what: directory / f"{what}.pem" for what in ("cert", "key", "ca")}
    try:
        return TlsFiles(RoleTls.model_validate(files), "admin")
    except StartupError as error:
        raise CommandError(f"--certificate {directory}: {error.message}") from None


def _own_certificate(directory: Path) -> Path | None:
    """The admin's of the local cluster, if that is secure."""
    from penstock.local.secure import admin_certificate
    from penstock.local.store import Store

    store = Store(directory)
    return admin_certificate(store.directory) if store.exists() and store.load().secure else None


def _addresses(controllers: str | None, directory: Path) -> list[str]:
    if controllers:
        words = [word.strip() for word in controllers.split(",") if word.strip()]
        # "1@host:port", as the controllers' own setting has it, is taken too.
        return reach.addresses_of(",".join(re.sub("^[0-9]+@", "", word) for word in words), "--controllers")
    from penstock.local.plan import CONTROLLER, HOST
    from penstock.local.store import Store

    store = Store(directory)
    if not store.exists():
        raise CommandError(
            f"which controllers? give --controllers HOST:PORT, or --dir of a local cluster "
            f"(none is in {store.directory})",
            ExitCode.USAGE,
        )
    return [f"{m.id}@{HOST}:{m.ports['grpc']}" for m in store.load().of_role(CONTROLLER)]


def user_name() -> str:
    """Who runs this command, for the log of the controllers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"
