"""`penstock-storage-node`, and `python -m penstock_storage_node`."""

from __future__ import annotations

import sys

from penstock_runtime.roles import run_role_main
from penstock_storage_node.role import ROLE


def main() -> int:
    """Run the role as this process; its exit code."""
    return run_role_main(ROLE)


if __name__ == "__main__":
    sys.exit(main())
