"""The name in the certificate of one of our own processes. Pure.

    URI:spiffe://<trust domain>/<role>/<name>

Roles are those of `ROLES`; the name is the process's id, or `*` where processes are scaled and share one
certificate. A certificate says one such name or it is none of ours: with two it would be up to each reader which
one counts. Source: the SPIFFE ID and X509-SVID specifications (one URI SAN, no query, no fragment, no port).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

ROLES: Final = frozenset({"controller", "storage-node", "gateway", "admin"})
ANY_NAME: Final = "*"
_SCHEME = "spiffe://"
_URI_BYTES_MAX = 2048
_TRUST_DOMAIN = re.compile(r"[a-z0-9._-]{1,255}")
_NAME = re.compile(r"\*|[A-Za-z0-9._-]{1,255}")


class PeerIdentity(NamedTuple):
    """Whose certificate it is."""

    trust_domain: str
    role: str
    name: str

    def __str__(self) -> str:
        return f"{_SCHEME}{self.trust_domain}/{self.role}/{self.name}"


class BadIdentity(ValueError):
    """A certificate or a URI that names no process of ours; the text says why."""


def parse_uri(uri: str) -> PeerIdentity:
    """The identity that a SPIFFE URI names. Raises BadIdentity."""
    if len(uri) > _URI_BYTES_MAX:
        raise BadIdentity(f"a name of {len(uri)} characters")
    if not uri.startswith(_SCHEME):
        raise BadIdentity(f"{uri!r} is no spiffe:// name")
    parts = uri[len(_SCHEME) :].split("/")
    if len(parts) != 3:
        raise BadIdentity(f"{uri!r} is not spiffe://DOMAIN/ROLE/NAME")
    trust_domain, role, name = parts
    if not _TRUST_DOMAIN.fullmatch(trust_domain):
        raise BadIdentity(f"{uri!r} has no trust domain that may be one")
    if role not in ROLES:
        raise BadIdentity(f"{uri!r} has the unknown role {role!r}")
    if not _NAME.fullmatch(name) or name in (".", ".."):
        raise BadIdentity(f"{uri!r} has no name that may be one")
    return PeerIdentity(trust_domain, role, name)


def identity_of(certificate: Mapping[str, Any] | None) -> PeerIdentity:
    """The identity in a verified certificate, as `ssl.SSLSocket.getpeercert()` gives it. Raises BadIdentity."""
    names = (certificate or {}).get("subjectAltName", ())
    uris = [value for kind, value in names if kind == "URI"]
    ours = [uri for uri in uris if uri.startswith(_SCHEME)]
    if not ours:
        raise BadIdentity("the certificate names no role (no spiffe:// name in it)")
    if len(uris) != 1:
        raise BadIdentity(f"the certificate has {len(uris)} URIs, one is needed")
    return parse_uri(ours[0])
