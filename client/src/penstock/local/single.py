"""All roles in one process, for development: `python -m penstock.local.single ROLE=SETTINGS.toml ...`.

Started by `penstock local up --single` as a child: process-wide hooks of a role never
reach the process that asked for it. Roles come in the order in which they may start;
they are stopped in the reverse one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from penstock_runtime.logs import configure_logs
from penstock_runtime.roles import find_role, run_in_loop, run_roles
from penstock_runtime.settings import StartupError, load_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the roles until a signal; the exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if not words:
            raise StartupError("nothing to run; give ROLE=SETTINGS.toml for each role")
        roles = []
        for word in words:
            name, _, path = word.partition("=")
            role = find_role(name)
            roles.append((role, load_settings(role.settings, ["--config", path], name)))
    except StartupError as error:
        for line in error.message.splitlines():
            sys.stderr.write(f"penstock-single: {line}\n")
        return error.exit_code
    settings = roles[0][1]
    configure_logs(settings.log_level, settings.log_format)
    return run_in_loop(
        lambda: run_roles(roles), allow_failpoints=all(settings.allow_failpoints for _, settings in roles)
    )


if __name__ == "__main__":
    sys.exit(main())
