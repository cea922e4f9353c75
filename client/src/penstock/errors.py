"""The one exception that ends a command, and the exit codes it may carry.

Rule: the message is one line (more only where a log's last lines are shown), names
the thing, and says the mend. `cli.main` prints it and nothing else: no stack trace.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every `penstock` command; documented in `penstock --help`."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    REFUSED = 4
    """A gate refused it; nothing was changed."""
    GOES_ON = 5
    """`--wait` ran out before the end of an operation, which goes on."""
    INTERRUPTED = 130


class CommandError(Exception):
    """A failure to show to the user; `exit_code` is what the process ends with."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
