"""Bytes as the JSON strings of the vocabulary, and Kafka's names of error codes."""

from __future__ import annotations

from kio.schema.errors import ErrorCode


def to_bytes(text: str | None) -> bytes | None:
    """The bytes that a string of the vocabulary stands for."""
    return None if text is None else text.encode("latin-1")


def to_text(data: bytes | bytearray | memoryview | None) -> str | None:
    """A string of the vocabulary."""
    return None if data is None else bytes(data).decode("latin-1")


def code_name(code: int) -> str:
    """Kafka's name of an error code."""
    if code == 0:
        return "NONE"
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"CODE_{code}"
