"""Processes that a command of the operator restarts: systemd units, a script by ssh, whatever there is. No shell."""

from __future__ import annotations

import shlex
import string
import subprocess
from collections.abc import Sequence
from typing import Final, NoReturn

from penstock.cli.via.ways import ProcessName
from penstock.errors import CommandError, ExitCode

FIELDS: Final = ("role", "name", "id", "http")
"""What stands for the process in the command, in braces."""
_EXAMPLE: Final = "ssh {name}.example.org systemctl restart penstock-{role}"


class ExecWay:
    """One command, run for each process. Implements `Way`, but for more and fewer processes."""

    via = "exec"

    def __init__(self, command: str) -> None:
        """Raises a usage error where it is no command, or names fields that there are not."""
        try:
            self._words = shlex.split(command)
        except ValueError as error:
            raise CommandError(f"--command: {error}; quote it as a shell would", ExitCode.USAGE) from None
        if not self._words:
            raise CommandError(f"--command is empty: give one such as '{_EXAMPLE}'", ExitCode.USAGE)
        named = {field for word in self._words for field in _fields(word)}
        if not named & {"name", "id", "http"}:
            raise CommandError(
                "--command names no process: it needs {name}, {id} or {http}, as in '" + _EXAMPLE + "'",
                ExitCode.USAGE,
            )

    def words(self, process: ProcessName) -> list[str]:
        """The command for one process, word by word; what is put in stays within its word."""
        is_gateway = process.role == "gateway"
        values = {
            "role": process.role,
            "name": process.name,
            "id": process.name if is_gateway else str(process.number),
            "http": process.http,
        }
        return [word.format(**values) for word in self._words]

    def restart(self, process: ProcessName) -> None:
        """Run it and wait for its end. Raises CommandError when it fails."""
        words = self.words(process)
        try:
            # A session of its own: Ctrl-C is for this command, and must not leave a process half restarted.
            done = subprocess.run(  # noqa: S603 (the operator's own command, no shell)
                words, stdin=subprocess.DEVNULL, check=False, start_new_session=True
            )
        except OSError as error:
            raise CommandError(f"--command: cannot run {words[0]!r}: {error.strerror}") from None
        if done.returncode:
            raise CommandError(f"`{shlex.join(words)}` ended with {done.returncode}")

    def start_more(self, role: str, count: int) -> NoReturn:
        """Raises CommandError: a command that restarts makes no more of them."""
        raise CommandError(f"--via exec cannot start {count} more of {role}", ExitCode.USAGE)

    def stop(self, processes: Sequence[ProcessName]) -> NoReturn:
        """Raises CommandError: a command that restarts stops none."""
        names = ", ".join(process.name for process in processes)
        raise CommandError(f"--via exec cannot stop {names}", ExitCode.USAGE)


def _fields(word: str) -> list[str]:
    try:
        parts = list(string.Formatter().parse(word))
    except ValueError as error:
        raise _bad(word, str(error)) from None
    found = []
    for _, field, form, conversion in parts:
        if field is None:
            continue
        if field not in FIELDS or form or conversion:
            raise _bad(word, "there is no such field")
        found.append(field)
    return found


def _bad(word: str, why: str) -> CommandError:
    known = ", ".join("{" + field + "}" for field in FIELDS)
    return CommandError(
        f"--command: {word!r}: {why}; there are {known}, and other braces are written twice", ExitCode.USAGE
    )
