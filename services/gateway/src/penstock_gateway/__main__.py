"""`penstock-gateway`: the gateway as a process of its own."""

from __future__ import annotations

import sys

from penstock_gateway.role import ROLE
from penstock_runtime.roles import run_role_main


def main() -> int:
    """Run until TERM; the exit code."""
    return run_role_main(ROLE)


if __name__ == "__main__":
    sys.exit(main())
