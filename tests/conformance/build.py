"""Requests of any API and version from plain dictionaries, and responses back to them, with kio's schemas.

A field that a version does not have is left out; one that is not given gets its schema's default, or zero, "",
empty or None. Responses lose what differs between two right brokers: ids, addresses, times, texts for people.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import importlib
import json
import pkgutil
import types
import typing
import uuid
from functools import cache
from typing import Any

from kio.static.constants import EntityType

LEFT_OUT = frozenset(
    {
        "throttle_time", "error_message", "host", "port", "cluster_id", "node_endpoints", "leader_epoch",
        "current_leader_epoch", "member_id", "leader", "member_epoch_text", "log_append_time", "timestamp_ms",
        "topic_authorized_operations", "cluster_authorized_operations", "authorized_operations", "controller_id",
        "leader_id", "replica_nodes", "isr_nodes", "offline_replicas", "rack", "node_id", "brokers",
        "coordinators_at",
        "producer_id", "generation_id_text", "topic_id", "client_host", "current_leader", "assignment_epoch",
        "group_epoch", "member_epoch", "heartbeat_interval", "preferred_read_replica", "finalized_features_epoch",
        "record_errors", "records", "log_start_offset",
    }
)  # fmt: skip


@cache
def entity(api: str, version: int, kind: str = "request") -> Any:
    """The class of an API's request or response."""
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    wanted = EntityType.request if kind == "request" else EntityType.response
    return next(one for one in vars(module).values() if getattr(one, "__type__", None) is wanted)


def versions(api: str) -> list[int]:
    """Versions that the schemas have."""
    package = importlib.import_module(f"kio.schema.{api}")
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return sorted(int(name[1:]) for name in names)


def request(api: str, version: int, values: dict[str, Any]) -> Any:
    """A request; values that no field is called by are left out (another version has them)."""
    return _make(entity(api, version), values)


@cache
def _fields(kind: Any) -> list[tuple[str, Any, Any]]:
    hints = typing.get_type_hints(kind)
    return [(field.name, hints[field.name], field.default) for field in dataclasses.fields(kind)]


def _make(kind: Any, values: dict[str, Any]) -> Any:
    made = {}
    for name, hint, default in _fields(kind):
        if name in values:
            made[name] = _value(hint, values[name])
        elif default is dataclasses.MISSING:
            made[name] = _empty(hint)
    return kind(**made)


def _value(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    kind, inner = _resolve(hint)
    if inner is not None:
        return tuple(_value(inner, one) for one in value)
    if dataclasses.is_dataclass(kind):
        return _make(kind, value)
    if isinstance(kind, type) and issubclass(kind, datetime.timedelta):
        return datetime.timedelta(milliseconds=value)
    return value


def _empty(hint: Any) -> Any:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return None
    kind, inner = _resolve(hint)
    if inner is not None:
        return ()
    if dataclasses.is_dataclass(kind):
        return _make(kind, {})
    if isinstance(kind, type):
        if issubclass(kind, datetime.timedelta):
            return datetime.timedelta(0)
        if issubclass(kind, bool):
            return False
        if issubclass(kind, int):
            return 0
        if issubclass(kind, bytes):
            return b""
        if issubclass(kind, uuid.UUID):
            return uuid.UUID(int=0)
    return ""


def _resolve(hint: Any) -> tuple[Any, Any]:
    """The type without None, and of a tuple that of its entries."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) is tuple:
        return tuple, typing.get_args(hint)[0]
    return hint, None


def shape(value: Any, left_out: frozenset[str] = LEFT_OUT) -> Any:
    """A response as JSON, without what differs between two right brokers."""
    if isinstance(value, enum.Enum):
        return value.name.upper()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: shape(getattr(value, field.name), left_out)
            for field in dataclasses.fields(value)
            if field.name not in left_out
        }
    if isinstance(value, (tuple, list)):
        # Topics and partitions come in no order that anybody promised.
        return sorted(
            (shape(one, left_out) for one in value), key=lambda one: json.dumps(one, sort_keys=True)
        )
    if isinstance(value, datetime.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("latin-1")
    if value is None or isinstance(value, (bool, str, float)):
        return value
    return int(value) if isinstance(value, int) else str(value)
