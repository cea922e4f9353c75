"""Several node ids on one address, for clients that know brokers by host and port.

librdkafka before 2.4.0 (Debian's kcat is one) keeps a single broker per "host:port":
of several node ids with one address only the last is left, and partitions led by the
others are unreachable (its issue 4212). Such a client is given the same address in
another spelling for each node id: `0x7f.0.0.1` for `127.0.0.1`, `gAteway` for `gateway`.
Resolvers take them for what they are; the client tells them apart. Others, whose
resolvers may be stricter (Java's is), never see them, nor does a listing of all topics
that is the first thing asked on a connection.

Where there is TLS, clients compare the host with a certificate: that has addresses in their one spelling, and
names in any case. So there only names are spelled.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Mapping

from penstock_gateway.routing.node_spread import Address

_LIBRDKAFKA = re.compile(r"rdkafka[ -]v?(\d+)\.(\d+)")
_FIXED_IN = (2, 4)


def needs_distinct_names(client_software: str) -> bool:
    """Whether a client is such a librdkafka, by its name and version in ApiVersions (KIP-511)."""
    found = _LIBRDKAFKA.search(client_software)
    return found is not None and (int(found[1]), int(found[2])) < _FIXED_IN


def alias_of(host: str, number: int) -> str:
    """The `number`-th spelling of a host; 0 is the host itself.

    A host that has no more spellings (few letters, an unusual IPv6 address) is given
    as it is.
    """
    if number == 0:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _spell_name(host, number)
    if isinstance(address, ipaddress.IPv4Address):
        first, rest = host.split(".", 1)
        return f"0x{'0' * (number - 1)}{int(first):x}.{rest}"
    groups = [f"{int(group, 16):x}" for group in address.exploded.split(":")]
    # Binary counting over the groups that can be zero-padded, the all-short form first.
    bits = number - 1
    for i in reversed(range(len(groups))):
        if len(groups[i]) < 4:
            if bits & 1:
                groups[i] = groups[i].zfill(4)
            bits >>= 1
    return ":".join(groups)


def _spell_name(host: str, number: int) -> str:
    """Names are the same in any case: counts in binary over the letters, the last one first."""
    out = list(host)
    for i in reversed(range(len(out))):
        if out[i].isascii() and out[i].isalpha():
            if number & 1:
                out[i] = out[i].swapcase()
            number >>= 1
    return "".join(out)


def with_distinct_aliases(
    addresses: Mapping[int, Address], *, names_only: bool = False
) -> dict[int, Address]:
    """The same addresses, each node id's in a spelling of its own; with `names_only` IP addresses stay."""
    seen: Counter[Address] = Counter()
    result = {}
    for node_id, (host, port) in sorted(addresses.items()):
        plain = names_only and _is_address(host)
        result[node_id] = (host if plain else alias_of(host, seen[host, port]), port)
        seen[host, port] += 1
    return result


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
