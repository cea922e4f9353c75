"""The column `headers` to what stands at the end of each record: their number, names and contents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_penstock.encode import varints
from pyspark_penstock.encode.arrow import Ints, binary, data_of, lengths_of, nulls_of, offsets_of, to_binary
from pyspark_penstock.errors import RowError


def header_tails(headers: Any) -> Any:
    """A binary column, a row per record. `headers` is a column of lists of (key, value); null means none.

    Raises RowError for a header without a name.
    """
    counts: Ints = pc.list_value_length(headers).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    keys, values = headers.flatten().flatten()
    if keys.null_count:
        raise RowError("a header's key is null; Kafka's headers have a name, so leave it out or name it")
    entries = _entries(to_binary(keys), to_binary(values))
    firsts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    runs = binary(offsets_of(entries)[firsts], data_of(entries))
    return pc.binary_join_element_wise(varints.column(counts), runs, b"")


def _entries(keys: Any, values: Any) -> Any:
    if not len(keys):
        return pa.array([], pa.binary())
    value_lengths = lengths_of(values)
    if values.null_count:
        value_lengths[nulls_of(values)] = -1
        values = values.fill_null(b"")
    key_lengths = varints.column(lengths_of(keys))
    return pc.binary_join_element_wise(key_lengths, keys, varints.column(value_lengths), values, b"")
