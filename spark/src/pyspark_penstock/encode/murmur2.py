"""Kafka's murmur2 over all keys of a column at once.

Source: org.apache.kafka.common.utils.Utils.murmur2. Rows are sorted by their number of words, so that those which
still have one are a prefix; words are gathered through a view of the bytes in which every byte begins one. The
last few rows, whose keys are much longer than the others', are finished one by one: a numpy call for a handful of
rows costs more than it saves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyspark_penstock.encode.arrow import Bytes, Ints, data_of, lengths_of, offsets_of

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF
_FEW_ROWS = 16

Hashes = NDArray[np.uint32]


def murmur2(keys: Any) -> Hashes:
    """The hash of each key, as an unsigned number; that of a null is the empty key's."""
    count = len(keys)
    lengths = lengths_of(keys)
    starts: Ints = offsets_of(keys)[:-1].astype(np.int64)
    data = data_of(keys)
    padded = np.empty(len(data) + 4, np.uint8)
    padded[: len(data)] = data
    padded[len(data) :] = 0
    words: NDArray[Any] = np.ndarray((len(data) + 1,), "<u4", padded, 0, (1,))
    whole = lengths >> 2
    hashes: Hashes = lengths.astype(np.uint32) ^ np.uint32(_SEED)
    if count and whole.max():
        order = np.argsort(-whole, kind="stable")
        mixed = _mix_words(hashes[order], words, starts[order], whole[order], padded)
        hashes[order] = mixed
    rest = lengths & 3
    some = np.flatnonzero(rest)
    if len(some):
        tails = words[(starts + (whole << 2))[some]]
        kept = ((1 << (rest[some] << 3)) - 1).astype(np.uint32)
        hashes[some] = (hashes[some] ^ (tails & kept)) * np.uint32(_M)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(_M)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _mix_words(hashes: Hashes, words: NDArray[Any], starts: Ints, whole: Ints, padded: Bytes) -> Hashes:
    """Rows in order of falling `whole`, the number of their words of four bytes."""
    m = np.uint32(_M)
    ends = np.searchsorted(-whole, -np.arange(int(whole[0])), side="left")
    """How many rows have a word of that number."""
    for word, live in enumerate(ends.tolist()):
        if live < _FEW_ROWS:
            for row in range(live):
                first, end = int(starts[row]) + 4 * word, int(starts[row]) + 4 * int(whole[row])
                hashes[row] = _mix_one(int(hashes[row]), padded[first:end])
            break
        k = words[starts[:live] + 4 * word].astype(np.uint32)
        k *= m
        k ^= k >> np.uint32(24)
        k *= m
        part = hashes[:live]
        part *= m
        part ^= k
    return hashes


def _mix_one(hashed: int, data: Bytes) -> int:
    for k in data.view("<u4").tolist():
        k = k * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ k
    return hashed
