"""The matrix for people: on a terminal, and in docs/compatibility.md between two marks."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

from bench.peer import KAFKA_VERSION

from conformance.clients import franz_go
from conformance.frame import SCENARIOS, Cell
from conformance.targets import DIRECT, KAFKA, PROXY
from support.java import OLDER_VERSION

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN = "<!-- written by `make conformance`: begin -->"
END = "<!-- written by `make conformance`: end -->"
_SIGNS = {"green": "ok", "red": "RED", "n/a": "-", "none": "?", "known": "differs"}
_PYTHON_CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka")
KCAT_VERSION = "1.7.1"


def one_line(cell: Cell) -> str:
    """A cell as it ended."""
    reason = f": {cell.reason}" if cell.reason else ""
    return f"{cell.status:5} {cell.seconds:5.1f} s  {cell.scenario} / {cell.client} / {cell.target}{reason}"


def sign(cells: Sequence[Cell]) -> str:
    """One square of the table: both listeners of Penstock."""
    ours = [cell for cell in cells if cell.target != KAFKA]
    found = {cell.status for cell in ours}
    if not found:
        return ""
    if len(found) == 1:
        return _SIGNS[ours[0].status]
    short = {PROXY: "proxy", DIRECT: "direct"}
    return ", ".join(f"{short[cell.target]} {_SIGNS[cell.status]}" for cell in ours)


def table(cells: Iterable[Cell], clients: Sequence[str]) -> list[list[str]]:
    """Header and rows: scenario, then a square per client."""
    by_square: dict[tuple[str, str], list[Cell]] = {}
    names: list[str] = []
    for cell in cells:
        by_square.setdefault((cell.scenario, cell.client), []).append(cell)
        if cell.scenario not in names:
            names.append(cell.scenario)
    names.sort(key=list(SCENARIOS).index)
    return [["scenario", *clients]] + [
        [name, *(sign(by_square.get((name, client), [])) for client in clients)] for name in names
    ]


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """For a terminal."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def summary(cells: Iterable[Cell]) -> str:
    """How many cells of each colour Penstock has."""
    counts = Counter(cell.status for cell in cells if cell.target != KAFKA)
    return ", ".join(
        f"{counts[status]} {status}" for status in ("green", "red", "none", "known", "n/a") if counts[status]
    )


def markdown(cells: Sequence[Cell], clients: Sequence[str], today: str) -> str:
    """What stands between the marks."""
    lines = [
        f"Apache Kafka {KAFKA_VERSION} was the oracle; {', '.join(versions(clients))}; Python"
        f" {platform.python_version()}; {today}. Penstock's cells: {summary(cells)}.",
    ]
    by_scenario = {cell.scenario for cell in cells}
    for section in dict.fromkeys(s.section for s in SCENARIOS.values() if s.name in by_scenario):
        chosen = [c for c in cells if SCENARIOS[c.scenario].section == section]
        columns = [c for c in clients if any(cell.client == c for cell in chosen)]
        rows = table(chosen, columns)
        lines += ["", f"### {section}", "", "| " + " | ".join(["scenario", "what", *columns]) + " |"]
        lines.append("|" + "---|" * (len(columns) + 2))
        for name, *squares in rows[1:]:
            what = SCENARIOS[name].what.rstrip(".").replace("|", "\\|")
            lines.append("| " + " | ".join([f"`{name}`", what, *squares]) + " |")
    lacking = sorted(
        {
            (cell.client, cell.scenario, cell.reason)
            for cell in cells
            if cell.status == "n/a" and cell.target != KAFKA
        }
    )
    if lacking:
        lines += ["", "### Not applicable, and why", ""]
        reasons: dict[tuple[str, str], list[str]] = {}
        for client, name, reason in lacking:
            reasons.setdefault((client, reason), []).append(f"`{name}`")
        lines += [f"* {client} {reason}: {', '.join(names)}" for (client, reason), names in reasons.items()]
    known = [c for c in cells if c.status == "known"]
    if known:
        lines += ["", "### What differs and stays so", ""]
        lines += [f"* `{c.scenario}`, {c.client}, {c.target}: {c.reason}." for c in known]
    wrong = [c for c in cells if c.status in ("red", "none") and c.target != KAFKA]
    if wrong:
        lines += ["", "### What differs", ""]
        lines += [f"* `{c.scenario}`, {c.client}, {c.target}: {c.reason}" for c in wrong]
    return "\n".join(lines)


def versions(clients: Sequence[str]) -> list[str]:
    """Each client with its version."""
    found = [f"{name} {metadata.version(name)}" for name in _PYTHON_CLIENTS if name in clients]
    if "kcat" in clients:
        found.append(f"kcat {KCAT_VERSION}")
    if "java" in clients:
        found.append(f"Java clients {KAFKA_VERSION}")
    if "java-3.9" in clients:
        found.append(f"and {OLDER_VERSION}")
    if "franz-go" in clients:
        found.append(f"franz-go {franz_go.version()}")
    return found


def write_document(text: str, document: Path = DOCUMENT) -> None:
    """Put the tables between the marks."""
    old = document.read_text()
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
