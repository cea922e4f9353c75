"""`penstock-controller`: one controller process."""

from __future__ import annotations

import sys

from penstock_controller.role import ROLE
from penstock_runtime.roles import run_role_main


def main() -> int:
    """Run a controller; the process's exit code."""
    return run_role_main(ROLE)


if __name__ == "__main__":
    sys.exit(main())
