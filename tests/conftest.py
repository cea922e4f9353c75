"""What holds for every test."""

from __future__ import annotations

# Importing PySyncObj replaces socket.inet_pton of the process, and a test that imports it would
# spoil that for all others; the controller's package takes care of it when it comes first.
import penstock_controller.quorum  # noqa: F401
