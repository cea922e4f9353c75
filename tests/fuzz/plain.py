"""Fuzzing without coverage, by a seed alone: the little that `make test` does, on every platform.

Inputs are the target's seeds, changed the way parsers are broken: bits and bytes, lengths at their limits,
cuts, runs doubled and moved, two seeds joined; and now and then nothing but noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from fuzz.target import Target

_NUMBERS: Final = (
    *(b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x7f\xff"),
    *(b"\xff\xff", b"\x80\x00", b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    *(b"\x80\x80\x80\x80\x80\x00", b"\xfe\xff\xff\xff\x0f", b"\x7f" + b"\xff" * 7, b"\x80" + b"\x00" * 7),
)


def inputs(target: Target, rng: random.Random, count: int) -> Iterator[bytes]:
    """`count` inputs for a target."""
    seeds = target.seeds
    for _ in range(count):
        if rng.random() < 0.03:
            yield rng.randbytes(rng.randrange(100))
            continue
        data = bytearray(rng.choice(seeds)[: target.input_bytes_max])
        for _ in range(rng.choice((1, 1, 2, 3, 8))):
            rng.choice(_CHANGES)(data, rng, seeds)
            if target.words and rng.random() < 0.3:
                at = rng.randrange(len(data) + 1)
                data[at:at] = rng.choice(target.words)
        yield bytes(data[: target.input_bytes_max])


def _bit(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _number(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    number = rng.choice(_NUMBERS)
    at = rng.randrange(len(data) + 1)
    data[at : at + len(number) * rng.randrange(2)] = number


def _cut(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _drop(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 4, 8))]


def _double(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = data[at : at + rng.randrange(1, 40)]


def _move(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    at, size = rng.randrange(len(data) + 1), rng.randrange(1, 20)
    part = data[at : at + size]
    del data[at : at + size]
    at = rng.randrange(len(data) + 1)
    data[at:at] = part


def _join(data: bytearray, rng: random.Random, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]


_CHANGES: Final[Sequence[Callable[[bytearray, random.Random, Sequence[bytes]], None]]] = (
    *(_bit, _byte, _number, _number, _cut, _drop, _double, _move, _join),
)
