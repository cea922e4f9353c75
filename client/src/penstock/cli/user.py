"""`penstock user`: who may sign in with a password (SCRAM)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from penstock.cli import security_wire
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_json, print_table
from penstock.cli.passwords import (
    ITERATIONS_DEFAULT,
    MECHANISMS,
    new_password,
    password_file_option,
    salted,
    write_bootstrap_file,
)
from penstock.errors import CommandError, ExitCode

_NAMES = {code: name for name, code in MECHANISMS.items()}

_iterations_option = click.option(
    "--iterations",
    type=click.IntRange(4_096, 16_384),
    default=ITERATIONS_DEFAULT,
    show_default=True,
    help="Rounds of hashing: more make a stolen key dearer to guess from, and every sign-in slower.",
)
_mechanism_option = click.option(
    "--mechanism",
    "-m",
    "mechanisms",
    type=click.Choice(list(MECHANISMS), case_sensitive=False),
    multiple=True,
    help="SCRAM mechanism; may be given twice.",
)


@click.group("user")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Users that sign in with a password: add, list, delete, and new passwords."""


@COMMAND.command()
@click.argument("user")
@_mechanism_option
@_iterations_option
@password_file_option
@bootstrap_option
def add(
    user: str, mechanisms: tuple[str, ...], iterations: int, password_file: Path | None, bootstrap: str
) -> None:
    """Add a user, whose password is asked for twice. Without --mechanism it may sign in with both.

    The password itself is not sent, but what is sent is as good: let --client-config have TLS in it.

    \b
    Examples:
      penstock user add alice
      penstock user add billing --password-file billing.secret --mechanism SCRAM-SHA-512
    """
    _check_name(user)
    check_reachable(bootstrap)
    if user in security_wire.describe_users(bootstrap, [user]):
        raise CommandError(f"user {user!r} exists; `penstock user password {user}` gives it a new password")
    codes = [MECHANISMS[name] for name in dict.fromkeys(mechanisms or MECHANISMS)]
    _set(bootstrap, user, dict.fromkeys(codes, iterations), password_file)
    note(f"added user {user}: {', '.join(_NAMES[code] for code in codes)}")


@COMMAND.command()
@click.argument("user")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="FILE",
    help="File to write, mode 0600.",
)
@_mechanism_option
@_iterations_option
@password_file_option
def bootstrap(
    user: str, output: Path, mechanisms: tuple[str, ...], iterations: int, password_file: Path | None
) -> None:
    """Write the first user of a cluster that is yet to be founded to a file; talks to nobody.

    Give the file to every controller as `bootstrap_users`, and name the user in `super_users` of gateways and
    storage nodes. The password is salted and hashed here. Once the cluster is there the file counts no more.

    
    Examples:
      penstock user bootstrap admin -o first-users.json
      penstock-controller --bootstrap-users first-users.json ...
    """
    _check_name(user)
    codes = [MECHANISMS[name] for name in dict.fromkeys(mechanisms or MECHANISMS)]
    secret = new_password(user, password_file)
    write_bootstrap_file(output, user, dict.fromkeys(codes, iterations), secret)
    note(f"wrote {output}: user {user} with {', '.join(_NAMES[code] for code in codes)}")


@COMMAND.command()
@click.argument("user")
@password_file_option
@bootstrap_option
def password(user: str, password_file: Path | None, bootstrap: str) -> None:
    """Give a user a new password, for every mechanism that it has. The old one counts no more.

    \b
    Examples:
      penstock user password alice
      penstock user password billing --password-file billing.secret
    """
    check_reachable(bootstrap)
    has = security_wire.describe_users(bootstrap, [user]).get(user)
    if has is None:
        raise _nobody(user)
    _set(bootstrap, user, has, password_file)
    note(f"user {user} has a new password")


@COMMAND.command("list")
@bootstrap_option
@json_option
def list_users(bootstrap: str, as_json: bool) -> None:
    """List users with the mechanisms that each may sign in with.

    \b
    Examples:
      penstock user list
      penstock user list --json | jq -r '.[].user'
    """
    check_reachable(bootstrap)
    found = security_wire.describe_users(bootstrap)
    rows = [
        {
            "user": user,
            "mechanisms": [
                {"mechanism": _NAMES.get(code, str(code)), "iterations": iterations}
                for code, iterations in sorted(found[user].items())
            ],
        }
        for user in sorted(found)
    ]
    if as_json:
        print_json(rows)
    elif rows:
        print_table(
            ("user", "mechanism", "iterations"),
            [
                [user, _NAMES.get(code, str(code)), iterations]
                for user in sorted(found)
                for code, iterations in sorted(found[user].items())
            ],
        )
    else:
        note("there are no users; add one with `penstock user add NAME`")


@COMMAND.command()
@click.argument("users", metavar="USER...", nargs=-1, required=True)
@_mechanism_option
@click.option("--if-exists", is_flag=True, help="A missing user is no error.")
@bootstrap_option
def delete(users: tuple[str, ...], mechanisms: tuple[str, ...], if_exists: bool, bootstrap: str) -> None:
    """Delete users, or with --mechanism only what they sign in by with it. Their ACLs and quotas stay.

    \b
    Examples:
      penstock user delete alice
      penstock user delete billing --mechanism SCRAM-SHA-256
    """
    check_reachable(bootstrap)
    names = list(dict.fromkeys(users))
    known = security_wire.describe_users(bootstrap, names)
    chosen = {MECHANISMS[name] for name in mechanisms or MECHANISMS}
    wanted = {user: sorted(chosen & known.get(user, {}).keys()) for user in names}
    missing = [user for user, codes in wanted.items() if not codes]
    if missing and not if_exists:
        raise _nobody(missing[0], mechanisms)
    gone = [(user, code) for user, codes in wanted.items() for code in codes]
    if gone:
        _refuse(security_wire.alter_users(bootstrap, deletes=gone))
    for user, codes in wanted.items():
        if codes:
            note(f"deleted user {user}: {', '.join(_NAMES[code] for code in codes)}")


def _check_name(user: str) -> None:
    if not user or not user.isascii() or not user.isprintable():
        raise CommandError(
            f"user {user!r}: clients can sign in by names of printable ASCII characters alone", ExitCode.USAGE
        )


def _set(bootstrap: str, user: str, wanted: dict[int, int], password_file: Path | None) -> None:
    """Ask for a password and set it for these mechanisms, with these iterations."""
    secret = new_password(user, password_file)
    credentials = [salted(user, code, iterations, secret) for code, iterations in sorted(wanted.items())]
    _refuse(security_wire.alter_users(bootstrap, sets=credentials))


def _refuse(refused: dict[str, str]) -> None:
    for user, reason in refused.items():
        raise CommandError(f"user {user!r}: {reason}")


def _nobody(user: str, mechanisms: Sequence[str] = ()) -> CommandError:
    what = f"user {user!r} has no {' or '.join(mechanisms)}" if mechanisms else f"there is no user {user!r}"
    return CommandError(f"{what}; see `penstock user list`")
