"""`penstock cert`: the cluster's CA, and certificates of its processes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.controller import certificate_option, controllers_option, directory_option, with_client
from penstock.cli.output import note, print_json, print_table
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from types import ModuleType

    from penstock.certificates import CertificateAuthority, Leaf
    from penstock_runtime.controller_client import ControllerClient

ROLES = ("controller", "storage-node", "gateway", "admin")

directory_argument = click.argument(
    "directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path)
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def _library() -> ModuleType:
    try:
        from penstock import certificates
    except ImportError:
        raise CommandError(
            "`penstock cert` needs the package cryptography; install it with `pip install 'penstock[cert]'`"
        ) from None
    return certificates


@click.group("cert")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Certificates: one CA for a cluster, and a certificate for each of its processes.

    \b
    Examples:
      penstock cert init secure --domain flights.example.com
      penstock cert issue secure --role controller --name 1
      penstock cert issue secure --role storage-node --name node-7
      penstock cert issue secure --role gateway --name '*' --san kafka.example.com
      penstock cert show secure
      penstock cert renew secure --all
      penstock cert refuse secure/storage-node-node-7 --reason stolen

    DIR/ROLE-NAME has what one process needs, as its settings' table [tls]: cert, key and ca.
    Running processes take new files within two seconds. The CA's key, DIR/ca-key.pem, belongs on
    no machine of the cluster.
    """


@COMMAND.command("init")
@directory_argument
@click.option(
    "--domain",
    default="penstock.internal",
    show_default=True,
    help="Trust domain: part of every name in the certificates. It need not exist in the DNS.",
)
@json_option
def init(directory: Path, domain: str, as_json: bool) -> None:
    """Make a CA in DIR: P-256, good for 10 years.

    \b
    Examples:
      penstock cert init secure
      penstock cert init secure --domain flights.example.com
    """
    authority = _library().CertificateAuthority.create(directory, domain)
    _show(authority, [], as_json=as_json)
    if not as_json:
        note(
            f"CA of {domain} in {directory}; whoever has {directory / 'ca-key.pem'} can be anybody in the cluster"
        )


@COMMAND.command("issue")
@directory_argument
@click.option("--role", type=click.Choice(ROLES), required=True, help="What the process is.")
@click.option(
    "--name",
    required=True,
    help="Who it is: a controller's id, node-ID, a gateway's id, an admin's name; '*' for scaled nodes and gateways.",
)
@click.option(
    "--san",
    "sans",
    multiple=True,
    metavar="HOST",
    help="Host name or address that clients dial (listeners); may be given several times.",
)
@click.option("--days", type=int, default=90, show_default=True, help="How long it is good, 1 to 825 days.")
@json_option
def issue(directory: Path, role: str, name: str, sans: tuple[str, ...], days: int, as_json: bool) -> None:
    """Issue a certificate with a new key into DIR/ROLE-NAME; one that is there is replaced.

    \b
    Examples:
      penstock cert issue secure --role storage-node --name node-7
      penstock cert issue secure --role gateway --name gw-1 --san kafka.example.com --san 10.1.2.3
      penstock cert issue secure --role admin --name ann --days 7
    """
    library = _library()
    authority = library.CertificateAuthority(directory)
    leaf = library.Leaf(role, name, sans, days)
    if role in ("controller", "admin") and name == "*":
        raise CommandError(f"--name '*' is for scaled processes; a {role} has a name of its own")
    authority.issue(leaf)
    _show(authority, [leaf], as_json=as_json)
    if not as_json:
        note(_table(authority, leaf))


@COMMAND.command("show")
@click.argument("path", metavar="DIR|FILE", type=click.Path(exists=True, path_type=Path))
@json_option
def show(path: Path, as_json: bool) -> None:
    """Show certificates: of a CA's directory, of a process's, or of a file.

    State: good; renew soon (less than a third of its time is left); expired; not yet valid;
    of another CA (none of the ca.pem beside it signed it).

    \b
    Examples:
      penstock cert show secure
      penstock cert show secure/storage-node-node-7 --json
      penstock cert show ca.pem
    """
    library = _library()
    if path.is_dir() and (path / "cluster.json").exists():
        authority = library.CertificateAuthority(path)
        _show(authority, authority.issued(), as_json=as_json)
        return
    file = path / "cert.pem" if path.is_dir() else path
    beside = file.parent / "ca.pem"
    authorities = _load_all(library, beside) if beside.exists() else []
    _print([library.describe(file, cert, authorities) for cert in _load_all(library, file)], as_json=as_json)


@COMMAND.command("renew")
@directory_argument
@click.option("--role", type=click.Choice(ROLES), help="Only those of this role.")
@click.option("--name", help="Only those of this name.")
@click.option(
    "--all", "everything", is_flag=True, help="Also those that have more than a third of their time left."
)
@json_option
def renew(directory: Path, role: str | None, name: str | None, everything: bool, as_json: bool) -> None:
    """Issue anew, with new keys, what has less than a third of its time left; names and days stay.

    \b
    Examples:
      penstock cert renew secure                          all that need it; good for cron
      penstock cert renew secure --all
      penstock cert renew secure --role storage-node --name node-7 --all
    """
    library = _library()
    authority = library.CertificateAuthority(directory)
    chosen = [leaf for leaf in authority.issued() if role in (None, leaf.role) and name in (None, leaf.name)]
    if not chosen:
        raise CommandError(
            f"nothing of that kind was issued in {directory}; `penstock cert show {directory}` lists all"
        )
    renewed = []
    for leaf in chosen:
        path = authority.paths(leaf)["cert"]
        state = (
            library.describe(path, library.load_certificate(path), authority.authorities())["state"]
            if path.exists()
            else "expired"
        )
        if everything or state != "good":
            authority.issue(leaf)
            renewed.append(leaf)
    if renewed or as_json:
        _show(authority, renewed, as_json=as_json, with_authorities=False)
    else:
        note("nothing to renew: all have more than a third of their time left")


@COMMAND.command("rotate")
@directory_argument
@click.option(
    "--add", "step", flag_value="add", help="Make a new CA, trusted beside the old one; it signs from now on."
)
@click.option("--remove", "step", flag_value="remove", help="Trust the new CA alone.")
@json_option
def rotate(directory: Path, step: str | None, as_json: bool) -> None:
    """Replace the CA while the cluster runs, in three steps.

    After each step give every process its new files and wait until its log says that they are in
    use: at the second step some processes still know the old CA alone.

    \b
    Examples:
      penstock cert rotate secure --add       1. everybody gets a ca.pem with both CAs
      penstock cert renew secure --all        2. everybody gets a certificate by the new CA
      penstock cert rotate secure --remove    3. the old CA is good for nothing any more
    """
    if step is None:
        raise click.UsageError("say --add or --remove; `penstock cert rotate --help` has the three steps")
    library = _library()
    authority = library.CertificateAuthority(directory)
    if step == "add":
        authority.add_authority()
        said = "now give every process its ca.pem, then `penstock cert renew --all`"
    else:
        removed = authority.remove_authorities()
        said = "now give every process its ca.pem" if removed else "there was one CA only: nothing to remove"
    _show(authority, [], as_json=as_json)
    if not as_json:
        note(said)


@COMMAND.command("refuse")
@click.argument("certificates", metavar="SERIAL|FILE|DIR...", nargs=-1, required=True)
@click.option(
    "--reason", default="", help="Why, for people: it stands in logs and in `penstock cert refused`."
)
@controllers_option
@certificate_option
@directory_option
@json_option
def refuse(
    certificates: tuple[str, ...],
    reason: str,
    controllers: str | None,
    certificate: Path | None,
    directory: Path,
    as_json: bool,
) -> None:
    """Let certificates in no more, from now on and everywhere: a lost key, a machine that is not ours any more.

    Controllers, storage nodes and gateways close what was opened with them, and take them neither on Kafka listeners
    nor among themselves. Give the process that ran with it another one first, or it stops working.

    \b
    Examples:
      penstock cert refuse secure/storage-node-node-7 --reason "machine was stolen"
      penstock cert refuse 5f:3a:91 --controllers ctl-1:5001 --certificate secure/admin-ann
    """
    changes = [(*_serial_of(each), reason) for each in certificates]
    _alter(changes, controllers, certificate, directory, as_json=as_json)


@COMMAND.command("allow")
@click.argument("certificates", metavar="SERIAL|FILE|DIR...", nargs=-1, required=True)
@controllers_option
@certificate_option
@directory_option
@json_option
def allow(
    certificates: tuple[str, ...],
    controllers: str | None,
    certificate: Path | None,
    directory: Path,
    as_json: bool,
) -> None:
    """Take `penstock cert refuse` back.

    \b
    Examples:
      penstock cert allow 5f3a91
    """
    changes = [(_serial_of(each)[0], None, "") for each in certificates]
    _alter(changes, controllers, certificate, directory, as_json=as_json)


@COMMAND.command("refused")
@controllers_option
@certificate_option
@directory_option
@json_option
def refused(controllers: str | None, certificate: Path | None, directory: Path, as_json: bool) -> None:
    """List the certificates that are let in no more.

    \b
    Examples:
      penstock cert refused --controllers ctl-1:5001 --certificate secure/admin-ann
    """
    _alter([], controllers, certificate, directory, as_json=as_json)


def _serial_of(word: str) -> tuple[str, int]:
    """Serial number and end in ms since 1970 (0 where it is not known) of what was given."""
    path = Path(word)
    if path.exists():
        library = _library()
        cert = library.load_certificate(path / "cert.pem" if path.is_dir() else path)
        return f"{cert.serial_number:x}", int(cert.not_valid_after_utc.timestamp() * 1000)
    from penstock_core.security.serial_number import BadSerial, read_serial

    try:
        return read_serial(word), 0
    except BadSerial as error:
        raise CommandError(f"{error}; nor is there a file of that name", ExitCode.USAGE) from None


def _alter(
    changes: Sequence[tuple[str, int | None, str]],
    controllers: str | None,
    certificate: Path | None,
    directory: Path,
    *,
    as_json: bool,
) -> None:
    """Refuse (with an end) and allow (with None); then show what is refused."""

    async def do(client: ControllerClient) -> Any:
        from penstock.cli.controller import look
        from penstock_core.errors import ErrorCode, PenstockError
        from penstock_proto.v1 import controller_pb2 as api
        from penstock_proto.v1 import metadata_pb2 as pb

        request = api.AlterRefusedCertificatesRequest(
            changes=[
                pb.RefusedCertificateRecord(
                    serial=serial, reason=reason, not_after_ms=end or 0, removed=end is None
                )
                for serial, end, reason in changes
            ]
        )
        await look(client)  # says of each address what is wrong with it
        reply: Any = await client.call("AlterRefusedCertificates", request)
        if reply.error.code:
            raise PenstockError(ErrorCode(reply.error.code), reply.error.message)
        return reply.refused

    found = with_client(controllers, certificate, directory, do)
    rows = [{"serial": r.serial, "reason": r.reason, "not_after_ms": r.not_after_ms} for r in found]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("serial", "reason", "runs out"),
        [(row["serial"], row["reason"] or "-", _when(row["not_after_ms"])) for row in rows],
    )


def _when(ms: int) -> str:
    if not ms:
        return "not known"
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")


def _load_all(library: ModuleType, path: Path) -> list[Any]:
    library.load_certificate(path)
    from cryptography import x509

    return x509.load_pem_x509_certificates(path.read_bytes())


def _show(
    authority: CertificateAuthority, leaves: list[Leaf], *, as_json: bool, with_authorities: bool = True
) -> None:
    library = _library()
    authorities = authority.authorities()
    rows = []
    if with_authorities:
        rows = [library.describe(authority.directory / "ca.pem", cert, authorities) for cert in authorities]
    for leaf in leaves:
        path = authority.paths(leaf)["cert"]
        if path.exists():
            rows.append(library.describe(path, library.load_certificate(path), authorities))
        else:
            note(f"{path} is not there: it was issued and moved away")
    _print(rows, as_json=as_json)


def _print(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_table(
        ("file", "subject", "names", "state", "days left"),
        [(row["file"], row["subject"], row["names"], row["state"], row["days_left"]) for row in rows],
    )


def _table(authority: CertificateAuthority, leaf: Leaf) -> str:
    """The settings that use it."""
    paths = authority.paths(leaf)
    if leaf.role == "admin":
        return f"use it with: --certificate {paths['cert'].parent}"
    lines = [f'{what} = "{path.absolute()}"' for what, path in paths.items()]
    return "\n".join([f"settings of the {leaf.role}:", "[tls]", *lines])
