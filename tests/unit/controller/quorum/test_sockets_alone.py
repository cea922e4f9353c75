"""Importing the quorum changes nothing for the rest of the process."""

from __future__ import annotations

import subprocess
import sys


def test_inet_functions_are_the_systems_own() -> None:
    code = (
        "import socket; before = socket.inet_ntop, socket.inet_pton; import penstock_controller.role; "
        "assert (socket.inet_ntop, socket.inet_pton) == before; "
        "assert socket.inet_ntop(socket.AF_INET, bytes([127, 0, 0, 1])) == '127.0.0.1'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
