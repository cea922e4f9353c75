"""A new password, from a terminal or from a file, and what is sent of it.

Never from a flag or a variable: those are seen by every process of the machine. What the cluster is told is salted
here, so that the password itself goes nowhere.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from penstock.cli.security_wire import Credential
from penstock.errors import CommandError, ExitCode

ITERATIONS_DEFAULT: Final = 4_096
"""As Kafka's tools, and as users that are not there seem to have."""
MECHANISMS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's codes."""
_BYTES_MAX: Final = 4_096
_SALT_BITS: Final = 130

password_file_option = click.option(
    "--password-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take the password from FILE, which nobody else may be able to read (mode 0600), not from the terminal.",
)


def new_password(user: str, file: Path | None) -> str:
    """The password that a user shall have: asked for twice, without echo, or what is in `file`.

    Raises a usage error where there is neither, or where other users can read the file.
    """
    if file is not None:
        return _checked(_read(file), f"{file}: ")
    if not sys.stdin.isatty():
        raise CommandError(
            "no terminal to ask for a password: give --password-file FILE (mode 0600)", ExitCode.USAGE
        )
    typed = click.prompt(
        f"New password of {user}", hide_input=True, confirmation_prompt="Once more", err=True
    )
    return _checked(str(typed), "")


def salted(user: str, mechanism: int, iterations: int, password: str) -> Credential:
    """The credential of a password, with a salt of its own."""
    from penstock_core.security.scram import ScramMechanism, salt_text

    salt = salt_text(secrets.randbits(_SALT_BITS))
    hashed = ScramMechanism(mechanism).salted_password(password.encode(), salt, iterations)
    return Credential(user, mechanism, iterations, salt, hashed)


def write_bootstrap_file(path: Path, user: str, mechanisms: Mapping[int, int], password: str) -> None:
    """A new file, mode 0600, for `bootstrap_users` of controllers: `mechanisms` with their iterations.

    Raises CommandError where it is there already.
    """
    from penstock_core.security.bootstrap_users import BootstrapUser, to_text
    from penstock_core.security.scram import ScramMechanism, credential

    users = []
    for code, iterations in mechanisms.items():
        made = salted(user, code, iterations, password)
        mechanism = ScramMechanism(code)
        users.append(BootstrapUser(user, credential(mechanism, made.salt, made.salted_password, iterations)))
    write_secret(path, to_text(users))


def write_secret(path: Path, text: str) -> None:
    """Write a new file that nobody else may read. Raises CommandError where it is there already."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise CommandError(f"{path} is there already; remove it, or give another path") from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}; give a path that can be written") from None
    with os.fdopen(handle, "w") as opened:
        opened.write(text)


def _read(file: Path) -> str:
    try:
        # Not to wait for the writer of a pipe that somebody put there.
        handle = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}", ExitCode.USAGE) from None
    with os.fdopen(handle, "rb") as opened:
        seen = os.fstat(opened.fileno())
        if not stat.S_ISREG(seen.st_mode):
            raise CommandError(f"{file} is no file; put the password into one of mode 0600", ExitCode.USAGE)
        if seen.st_mode & 0o077:
            raise CommandError(
                f"{file} has mode {stat.S_IMODE(seen.st_mode):04o}, others may read it: run `chmod 600 {file}`",
                ExitCode.USAGE,
            )
        data = opened.read(_BYTES_MAX + 1)
    if len(data) > _BYTES_MAX:
        raise CommandError(f"{file} has more than {_BYTES_MAX} bytes: is it a password?", ExitCode.USAGE)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not UTF-8", ExitCode.USAGE) from None
    return text.removesuffix("\n").removesuffix("\r")


def _checked(password: str, where: str) -> str:
    try:
        from penstock_core.security.saslprep import check_new_password
    except ImportError as error:
        raise CommandError(
            f"passwords are made by penstock-core ({error.name} is not installed): pip install 'penstock[native]'"
        ) from None
    try:
        check_new_password(password)
    except ValueError as error:
        raise CommandError(f"{where}{error}", ExitCode.USAGE) from None
    return password
