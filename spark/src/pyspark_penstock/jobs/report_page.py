"""The page of `report`: one HTML document, styles and charts in it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from pyspark_penstock.jobs.charts import bars, columns, size_text, table

_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5c6675; --line: #d8dde5; --bar: #2f6db5; --page: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ee; --soft: #9aa4b2; --line: #39424f; --bar: #6ba4e6; --page: #14181e; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); margin: 2rem auto;
       max-width: 60rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
.facts { display: flex; flex-wrap: wrap; gap: 1rem 2.5rem; } .facts div { min-width: 7rem; }
.facts b { display: block; font-size: 1.3rem; font-weight: 600; } .facts span, .none, .note { color: var(--soft); }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 500; } .number { text-align: right; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; } .bar { fill: var(--bar); }
.label, .value { fill: var(--soft); } .axis { stroke: var(--soft); } .grid { stroke: var(--line); }
"""
_COUNTS: Final = (
    "records",
    "control",
    "aborted",
    "compacted",
    "lost",
    "unreadable",
    "crc_errors",
    "duplicated",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report shows. Times in ms since 1970."""

    topic: str
    partitions: list[dict[str, Any]]
    """As the audit's."""
    stored_bytes: dict[int, int]
    findings: list[dict[str, Any]]
    step_ms: int
    rates: list[tuple[int, int]]
    """(begin of a slice of time, records in it), without holes."""
    codecs: list[tuple[str, int, int, int]]
    """(name, batches, records, bytes)"""
    sizes: list[tuple[int, int]] = field(default_factory=list)
    """(power of two, records of key and value together of at least so many bytes and less than twice as many)"""
    keys: list[tuple[str | None, int]] = field(default_factory=list)
    """The most frequent."""
    distinct_keys: int = 0
    groups: list[dict[str, Any]] | None = None
    """(group, partition, committed, end, lag) in dicts; None: nobody asked."""


def page(facts: Facts) -> str:
    """The document."""
    sections = [
        _head(facts),
        _section("Findings", _findings(facts)),
        _section("Records over time", _rates(facts)),
        _section("Balance of the partitions", _balance(facts)),
        _section("Partitions", _partitions(facts)),
        _section("Sizes of records", _sizes(facts), "key and value, before compression"),
        _section("Keys", _keys(facts), f"{facts.distinct_keys:,} different keys; the most frequent"),
        _section("Codecs", _codecs(facts)),
        _section("Lag of groups", _groups(facts)),
    ]
    title = escape(f"Topic {facts.topic}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
        f"<body>{''.join(sections)}</body></html>\n"
    )


def _section(title: str, content: str, note: str = "") -> str:
    said = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{said}{content}</section>\n"


def _head(facts: Facts) -> str:
    records = sum(row["records"] for row in facts.partitions)
    stored = sum(facts.stored_bytes.values())
    figures = [
        ("records", f"{records:,}"),
        ("stored", size_text(stored)),
        ("per record", size_text(stored / records) if records else "-"),
        ("partitions", f"{len(facts.partitions)}"),
        ("findings", f"{len(facts.findings)}"),
    ]
    shown = "".join(f"<div><b>{escape(value)}</b><span>{name}</span></div>" for name, value in figures)
    return f'<h1>Topic {escape(facts.topic)}</h1><div class="facts">{shown}</div>\n'


def _findings(facts: Facts) -> str:
    if not facts.findings:
        return '<p class="none">none: every offset is explained</p>'
    names = ("kind", "partition", "from", "to", "count")
    return table(names, [[item[name] for name in names] for item in facts.findings])


def _rates(facts: Facts) -> str:
    step_s = facts.step_ms / 1000
    texts = [f"{_time(at)}: {count:,} records, {count / step_s:,.1f} a second" for at, count in facts.rates]
    if not facts.rates:
        return columns([], [], ("", ""), "")
    most = max(count for _, count in facts.rates) / step_s
    ends = (_time(facts.rates[0][0]), _time(facts.rates[-1][0] + facts.step_ms))
    chart = columns([count / step_s for _, count in facts.rates], texts, ends, f"{most:,.1f}/s")
    return f'<p class="note">slices of {step_s:,.0f} s, by the newest record of each batch, UTC</p>{chart}'


def _balance(facts: Facts) -> str:
    rows = []
    for row in facts.partitions:
        size = facts.stored_bytes.get(row["partition"], 0)
        rows.append(
            (f"partition {row['partition']}", row["records"], f"{row['records']:,} · {size_text(size)}")
        )
    counts = [count for _, count, _ in rows]
    mean = sum(counts) / len(counts) if counts else 0
    skew = f"the fullest partition has {max(counts) / mean:.2f} times the mean" if mean else ""
    return f'<p class="note">{skew}</p>{bars(rows)}'


def _partitions(facts: Facts) -> str:
    names = ("partition", "first", "last", *_COUNTS)
    return table(
        [name.replace("_", " ") for name in names],
        [[row[name] for name in names] for row in facts.partitions],
    )


def _sizes(facts: Facts) -> str:
    rows = []
    for power, count in facts.sizes:
        low = 0 if power == 0 else 1 << power
        rows.append((f"{size_text(low)} to {size_text(1 << (power + 1))}", count, f"{count:,}"))
    return bars(rows)


def _keys(facts: Facts) -> str:
    total = sum(row["records"] for row in facts.partitions) or 1
    return bars(
        [
            ("no key" if key is None else key, count, f"{count:,} · {count / total:.1%}")
            for key, count in facts.keys
        ]
    )


def _codecs(facts: Facts) -> str:
    return table(
        ("codec", "batches", "records", "bytes", "records per batch"),
        [
            (name, batches, records, size, f"{records / batches:,.1f}" if batches else None)
            for name, batches, records, size in facts.codecs
        ],
    )


def _groups(facts: Facts) -> str:
    if facts.groups is None:
        return '<p class="none">not asked: it takes a Kafka address (--bootstrap)</p>'
    if not facts.groups:
        return '<p class="none">no group has committed offsets of this topic</p>'
    names = ("group", "partition", "committed", "end", "lag")
    return table(names, [[row.get(name) for name in names] for row in facts.groups])


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
