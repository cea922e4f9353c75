"""gRPC calls by somebody who has no business there."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import grpc

from security.role_ports import PATIENCE_S
from security.target import Outcome, Target

REFUSALS = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED)


def refused_by_all(target: Target, role: str, method: str, messages: Sequence[Any]) -> Outcome:
    """Call `method` in each way that the attacker has, with these messages; nobody may be answered."""
    roles = target.roles
    assert roles is not None
    address = roles.controller if role == "controller" else roles.storage_node
    said: dict[str, str] = {}
    refused = True
    for way in target.ways:
        with roles.channel(address, role, way) as channel:
            stream: Any = channel.stream_stream(method, None, None)
            call = stream((message.SerializeToString() for message in messages), timeout=PATIENCE_S)
            with contextlib.suppress(grpc.RpcError, StopIteration):
                next(call)
            code = call.code()
            refused &= code in REFUSALS
            said[way] = code.name
    return Outcome(refused, ", ".join(f"{way}: {code}" for way, code in said.items()))
