"""Kafka's messages with something in each field, of any API and version."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, get_args, get_origin

from penstock_kafka.wire import codec


def sample(schema: Any) -> Any:
    """An entity with one item in each array and something in each field."""
    values: dict[str, Any] = {}
    for field in fields(schema):
        kind: Any = field.type
        if type(None) in get_args(kind):
            kind = next(arg for arg in get_args(kind) if arg is not type(None))
        name = field.metadata.get("kafka_type", "")
        if get_origin(kind) is tuple:
            item = get_args(kind)[0]
            if hasattr(item, "__dataclass_fields__"):
                values[field.name] = (sample(item), sample(item))
            else:
                values[field.name] = (scalar(name, 1), scalar(name, 2))
        elif hasattr(kind, "__dataclass_fields__"):
            values[field.name] = sample(kind)
        else:
            values[field.name] = scalar(name, 3)
    return codec.build(schema, **values)


def scalar(name: str, seed: int) -> Any:
    if name == "string":
        return f"name-{seed}"
    if name in ("bytes", "records"):
        return bytes([seed]) * 5
    if name == "bool":
        return True
    if name == "uuid":
        return bytes([seed]) * 16
    if name == "datetime_i64":
        return datetime.fromtimestamp(seed, UTC)
    return seed
