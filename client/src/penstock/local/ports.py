"""Free ports, and who holds one that is taken.

Internal ports are taken below the range from which the kernel gives ports to outgoing
connections: a member that is dead for an hour finds its own port free when it comes back.
"""

from __future__ import annotations

import errno
import os
import random
import socket
from collections.abc import Set
from contextlib import suppress
from pathlib import Path

from penstock.errors import CommandError
from penstock.local.plan import HOST, HTTP_PORT_OFFSET, reserved_ports

PORTS_FROM = 15_000
PORTS_TO_DEFAULT = 32_000
ATTEMPTS_MAX = 2_000
BASE_FROM, BASE_TO = 2_100 - HTTP_PORT_OFFSET, 14_500
"""Below the ports that `choose_free` gives."""
PART_VARIABLE = "PENSTOCK_PORTS_PART"
"""Which part of these ranges is this process's and its children's, `2/3` is the second of three.

For test runs side by side. A port is chosen, found free and only then listened on, and that of a member that is dead
looks free: whoever looks in the same range finds it now and then.
"""


def is_free(port: int) -> bool:
    """Whether a listener could bind the port on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise CommandError(
                f"cannot listen on {HOST}:{port}: {error.strerror}; choose another --port"
            ) from error
    return True


def choose_free(count: int, avoid: Set[int], rng: random.Random | None = None) -> list[int]:
    """`count` different ports that are free now and not in `avoid`."""
    picker = rng or random.SystemRandom()
    lowest, highest = _my_part(PORTS_FROM, min(PORTS_TO_DEFAULT, _ephemeral_from() - 1))
    chosen: list[int] = []
    for _ in range(ATTEMPTS_MAX):
        if len(chosen) == count:
            return chosen
        port = picker.randint(lowest, highest)
        if port not in avoid and port not in chosen and is_free(port):
            chosen.append(port)
    raise CommandError(f"no {count} free ports between {lowest} and {highest}: stop some other servers")


def choose_base() -> int:
    """A `--port` whose whole family is free now; random, because several test runs share a machine."""
    picker = random.SystemRandom()
    lowest, highest = _my_part(BASE_FROM, BASE_TO)
    for _ in range(ATTEMPTS_MAX):
        port = picker.randrange(lowest, highest)
        if all(is_free(one) for one in reserved_ports(port)):
            return port
    raise CommandError(f"no free family of ports from {lowest} to {highest}: stop some other servers")


def holder(port: int) -> str:
    """Who listens on the port, as far as this user may know, in words."""
    import psutil

    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
                if connection.pid is None:
                    break
                return f"by process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return "by another program"


def _my_part(first: int, last: int) -> tuple[int, int]:
    """What is this process's of a range."""
    number, _, count = os.environ.get(PART_VARIABLE, "1/1").partition("/")
    size = (last + 1 - first) // int(count)
    lowest = first + (int(number) - 1) * size
    return lowest, lowest + size - 1


def _ephemeral_from() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return PORTS_TO_DEFAULT
    # A machine with a range that starts very low leaves no room below it: then any port will do.
    return first if first > PORTS_FROM + 1_000 else PORTS_TO_DEFAULT
