"""Connections that say nothing after their first word: ApiVersions, as every client's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.runner.machine import need_files
from bench.runner.systems import ASK_TIMEOUT_S

# Length, ApiVersions 0, correlation id 1, client id "idle".
_API_VERSIONS: Final = bytes.fromhex("0000000e 0012 0000 00000001 0004 69646c65".replace(" ", ""))
_SPARE: Final = 200


@contextmanager
def idle_connections(bootstrap: str, count: int) -> Iterator[None]:
    """`count` of them, over the addresses of `bootstrap` in turn. Raises Missing where a process may not have
    so many."""
    need_files(count + _SPARE)
    addresses = [address.rpartition(":") for address in bootstrap.split(",")]
    with ExitStack() as stack:
        for number in range(count):
            host, _, port = addresses[number % len(addresses)]
            connection = stack.enter_context(
                socket.create_connection((host, int(port)), timeout=ASK_TIMEOUT_S)
            )
            connection.sendall(_API_VERSIONS)
            if not connection.recv(4096):
                raise OSError(f"{host}:{port} shut connection {number + 1} of {count}")
        yield
