"""No client: frames by hand. Its scenarios use `conformance.wire` and `t.bootstrap`."""

from __future__ import annotations

from conformance.client import Client


class Raw(Client):
    name = "raw"


CLIENT = Raw
