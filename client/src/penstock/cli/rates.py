"""Sizes, rates and spans of time, as people write and read them. Pure.

`MB` is 1,000,000 bytes and `MiB` 1,048,576; what is shown is in powers of 1,000.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from penstock.errors import CommandError, ExitCode

AUTO: Final = "auto"

_UNITS: Final = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)},
}
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]*)")
_BYTES_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = 40
_SHOWN: Final = ("kB", "MB", "GB", "TB", "PB")
_SPANS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def parse_size(text: str, option: str) -> int:
    """Bytes: `10GB`, `512MiB`, or a plain number of bytes. Raises a usage error that names `option`."""
    found = _SIZE.fullmatch(text.strip())
    factor = _UNITS.get(found[2].lower()) if found else None
    size = round(Fraction(found[1]) * factor) if found and factor and len(found[1]) <= _DIGITS_MAX else 0
    if not 1 <= size <= _BYTES_MAX:
        raise CommandError(
            f"{option} {text!r}: give bytes, or a number with a unit such as 50MB or 48MiB", ExitCode.USAGE
        )
    return size


def parse_throttle(text: str, option: str = "--throttle") -> int | None:
    """Bytes per second of `50MB/s`, `48MiB/s` or plain bytes; None for `auto`. Raises a usage error."""
    word = text.strip()
    if word.lower() == AUTO:
        return None
    try:
        return parse_size(word.removesuffix("/s"), option)
    except CommandError:
        raise CommandError(
            f"{option} {text!r}: give auto, or a rate such as 50MB/s, 48MiB/s or bytes per second",
            ExitCode.USAGE,
        ) from None


def size_text(size_bytes: int) -> str:
    """`3.4 GB`."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    value = float(size_bytes)
    for unit in _SHOWN:
        value /= 1000
        # So that 999,500 is shown as 1.0 MB and not as 1000 kB.
        if value < 999.5 or unit == _SHOWN[-1]:
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def rate_text(bytes_per_s: int) -> str:
    """`48 MB/s`."""
    return f"{size_text(bytes_per_s)}/s"


def span_text(span_s: float) -> str:
    """`2 min 10 s`: the two largest units that count."""
    left = max(0, round(span_s))
    words: list[str] = []
    for length, unit in _SPANS:
        count, left = divmod(left, length)
        if count or words:
            words.append(f"{count} {unit}" if count else "")
        if len(words) == 2:
            break
    return " ".join(word for word in words if word) or "0 s"
