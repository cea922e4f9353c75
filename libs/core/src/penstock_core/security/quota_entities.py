"""Who a quota is for, which keys it may have, and which of several counts.

Sources: Kafka 4.3, ClientQuotaControlManager (what is refused), ClientQuotaManager.DefaultQuotaCallback (precedence),
QuotaConfig (keys). A name that is absent is None, the default of a kind is DEFAULT, as in the metadata.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from penstock_core.errors import ErrorCode, PenstockError

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_INT_MAX: Final = (1 << 31) - 1
_LONG_MAX: Final = (1 << 63) - 1
CLIENT_KEYS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: _LONG_MAX,
    CONSUMER_BYTE_RATE: _LONG_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""Keys of users and client ids. The largest value of those that are whole numbers, None: any number."""
IP_KEYS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: _INT_MAX}


DEFAULT: Final = ""
"""Whoever has no quota of his own; nobody has an empty name (KIP-546 says null for it)."""


class QuotaEntity(NamedTuple):
    """Who a quota is for: None says nothing of that kind, DEFAULT is everybody of the kind without one."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    def __str__(self) -> str:
        names = zip((USER, CLIENT_ID, IP), self, strict=True)
        return ", ".join(
            f"{kind} {repr(name) if name else '<default>'}" for kind, name in names if name is not None
        )


def _refuse(why: str) -> PenstockError:
    return PenstockError(ErrorCode.INVALID_REQUEST, why)


def read_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """The entity that a request names by (type, name); a name of None means the default.

    Raises INVALID_REQUEST. Kafka resolves an ip that is a host's name; here it must be an address.
    """
    names: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in (USER, CLIENT_ID, IP):
            raise _refuse(f"Unhandled client quota entity type: {kind!r}, there are user, client-id and ip")
        if kind in names:
            raise _refuse(f"Invalid client quota entity, duplicate entity entry {kind}")
        if name == "":
            raise _refuse(f"Empty {kind} not supported")
        names[kind] = DEFAULT if name is None else name
    if not names:
        raise _refuse("Invalid empty client quota entity")
    ip = names.get(IP)
    if ip is not None and len(names) > 1:
        raise _refuse(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    if ip:
        try:
            ip = str(ipaddress.ip_address(ip))
        except ValueError:
            raise _refuse(f"{ip!r} is not a valid IP") from None
    return QuotaEntity(names.get(USER), names.get(CLIENT_ID), ip)


def check_value(entity: QuotaEntity, key: str, value: float) -> None:
    """Raise INVALID_REQUEST unless the entity may have that quota."""
    keys = CLIENT_KEYS if entity.ip is None else IP_KEYS
    if key not in keys:
        raise _refuse(f"Invalid configuration key {key!r} for {entity}: there are {', '.join(keys)}")
    most = keys[key]
    if not math.isfinite(value):
        raise _refuse(f"Quota {key} must be a number, not {value}")
    if value <= 0:
        raise _refuse(f"Quota {key} must be greater than 0, not {value:g}")
    if most is None:
        return
    if value > most:
        raise _refuse(
            f"Proposed value for {key} is too large for {'an INT' if most == _INT_MAX else 'a LONG'}."
        )
    if value % 1.0 > 1e-6:
        raise _refuse(f"{key} cannot be a fractional value.")


class Hit(NamedTuple):
    """The quota that counts for a request, and who shares its bucket."""

    limit: float
    entity: QuotaEntity
    """The entity that has the quota."""
    user: str | None
    client_id: str | None
    """The bucket: requests with the same two draw from it. None: any."""


class QuotaTable:
    """Quotas at one version; nobody changes one."""

    __slots__ = ("_by_key",)

    def __init__(self, quotas: Mapping[QuotaEntity, Mapping[str, float]] | None = None) -> None:
        self._by_key: dict[str, dict[QuotaEntity, float]] = {}
        for entity, values in (quotas or {}).items():
            for key, value in values.items():
                self._by_key.setdefault(key, {})[entity] = value

    def with_quota(self, entity: QuotaEntity, key: str, value: float | None) -> QuotaTable:
        """A table where that is so; None takes it away."""
        after = QuotaTable()
        after._by_key = self._by_key.copy()
        values = after._by_key[key] = after._by_key.get(key, {}).copy()
        if value is None:
            values.pop(entity, None)
        else:
            values[entity] = value
        if not values:
            del after._by_key[key]
        return after

    def __iter__(self) -> Iterator[tuple[QuotaEntity, str, float]]:
        for key, values in self._by_key.items():
            for entity, value in values.items():
                yield entity, key, value

    def for_client(self, key: str, user: str, client_id: str) -> Hit | None:
        """The quota of a user's client, the most specific first; None: unlimited.

        An empty client id is one like any other. (In Kafka it has no quota of client ids at all.)
        """
        values = self._by_key.get(key)
        if not values:
            return None
        for entity in _precedence(user, client_id):
            limit = values.get(entity)
            if limit is not None:
                return Hit(
                    limit,
                    entity,
                    None if entity.user is None else user,
                    None if entity.client_id is None else client_id,
                )
        return None

    def for_ip(self, ip: str) -> float | None:
        """New connections per second from an address; None: unlimited."""
        values = self._by_key.get(CONNECTION_CREATION_RATE)
        if not values:
            return None
        limit = values.get(QuotaEntity(ip=ip))
        return values.get(QuotaEntity(ip=DEFAULT)) if limit is None else limit


def _precedence(user: str, client_id: str) -> tuple[QuotaEntity, ...]:
    return (
        QuotaEntity(user, client_id),
        QuotaEntity(user, DEFAULT),
        QuotaEntity(user),
        QuotaEntity(DEFAULT, client_id),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT),
        QuotaEntity(None, client_id),
        QuotaEntity(None, DEFAULT),
    )
