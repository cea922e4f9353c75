"""Binding sockets and advertising what was bound.

Rule: a plaintext socket off the loopback interface opens only when the operator has
named that very port (`allow_plaintext`), or all of them (`allow_insecure_bind`). Every failure
is a `StartupError` whose one line names the address, the setting it came from and the mend.
"""

from __future__ import annotations

import errno
import socket

from penstock_core.addresses import WILDCARD_HOSTS, Address, is_loopback, parse_address
from penstock_core.metadata.image import Endpoint

Plaintext = bool | frozenset[str]
"""Ports that may be plaintext where other machines reach them: all, none, or by the names of `port_name`."""


class StartupError(Exception):
    """The process cannot start; each line of the message names a thing and its mend.

    `exit_code` is what the process ends with (2, as for any command called wrongly).
    """

    def __init__(self, message: str, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code


def port_name(setting: str) -> str:
    """A port in `allow_plaintext`, by the setting that binds it: grpc_bind is `grpc`, a listener `listener:NAME`."""
    if setting.startswith("listener "):
        return "listener:" + setting.removeprefix("listener ").partition(":")[0]
    return setting.removesuffix("_bind")


def check_bind(bind: str, setting: str, *, allow_insecure_bind: Plaintext) -> Address:
    """The address of a plaintext socket to open, or StartupError if it must not be opened."""
    try:
        address = parse_address(bind)
    except ValueError as e:
        raise StartupError(f"{setting}: {e}") from None
    name = port_name(setting)
    allowed = allow_insecure_bind if isinstance(allow_insecure_bind, bool) else name in allow_insecure_bind
    if not is_loopback(address.host) and not allowed:
        raise StartupError(
            f"{setting} = {bind} would open a plaintext port to other machines; bind 127.0.0.1, or, if that "
            f'network is trusted, set allow_plaintext = ["{name}"] (allow_insecure_bind = true is all ports)'
        )
    return address


def _bind_failure(address: Address, setting: str, error: OSError) -> StartupError:
    if error.errno == errno.EADDRINUSE:
        why = f"port {address.port} is taken; stop what listens there or choose another port"
    elif error.errno in (errno.EACCES, errno.EPERM):
        why = "the port needs privileges; choose one above 1023"
    elif error.errno == errno.EADDRNOTAVAIL:
        why = f"this machine has no address {address.host}"
    elif isinstance(error, socket.gaierror):
        why = f"the name {address.host} does not resolve"
    else:
        why = error.strerror or str(error)
    return StartupError(f"{setting} = {address}: {why}")


def bind_sockets(
    bind: str, setting: str, *, allow_insecure_bind: Plaintext, backlog: int = 1024
) -> tuple[list[socket.socket], Endpoint]:
    """Open listening sockets (non-blocking), all on one port, and say where.

    A name with several addresses (`localhost`) is opened at each; with port 0 only at the
    first, because a free port of one family need not be free in the other.
    """
    address = check_bind(bind, setting, allow_insecure_bind=allow_insecure_bind)
    host = None if address.host in ("", "*") else address.host
    sockets: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, proto, _, where in found[:1] if address.port == 0 else found:
            try:
                s = socket.socket(family, kind, proto)
            except OSError:
                continue  # the kernel lacks this family
            sockets.append(s)
            s.setblocking(False)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                s.bind(where)
            except OSError as e:
                # A name such as localhost may list a family that the machine has not got.
                if e.errno == errno.EADDRNOTAVAIL and len(found) > 1:
                    sockets.pop().close()
                    continue
                raise
            s.listen(backlog)
        if not sockets:
            raise OSError(errno.EADDRNOTAVAIL, "no such address")
    except OSError as e:
        for s in sockets:
            s.close()
        raise _bind_failure(address, setting, e) from None
    return sockets, Endpoint("", address.host, sockets[0].getsockname()[1])


def check_free(address: Address, setting: str) -> None:
    """Raise StartupError when `address` cannot be bound, in words that name the reason."""
    sockets, _ = bind_sockets(str(address), setting, allow_insecure_bind=True)
    for s in sockets:
        s.close()


def advertised_endpoint(advertised: str, bound: Endpoint, listener: str = "") -> Endpoint:
    """What to tell others of a bound address.

    `auto` is the bound address itself or, when that is a wildcard, this host's name.
    """
    if advertised != "auto":
        address = parse_address(advertised)
        return Endpoint(listener, address.host, address.port or bound.port)
    host = socket.gethostname() if bound.host in WILDCARD_HOSTS else bound.host
    return Endpoint(listener, host, bound.port)
