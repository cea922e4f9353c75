"""`python -m conformance`: every scenario with every client, on Penstock and on Kafka, and the matrix at the end.

Exit status 0 when no cell is red, 1 otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from conformance import report
from conformance.clients.registry import CLIENTS
from conformance.frame import SCENARIOS, Cell, Scenario
from conformance.oracle import ORACLE, write_oracle
from conformance.runner import Runner
from conformance.scenarios import load
from conformance.targets import KAFKA, TARGETS, Worlds

JOBS = 4


def main(arguments: Sequence[str] | None = None) -> int:
    load()
    options = _parser().parse_args(arguments)
    if options.list:
        for one in SCENARIOS.values():
            sys.stdout.write(f"{one.section:12} {one.name:32} {one.what}\n")
        return 0
    scenarios = _chosen(options.scenario, options.section)
    whole = not (options.scenario or options.section or options.client or options.target)
    targets = list(options.target or TARGETS)
    if KAFKA not in targets:
        targets.append(KAFKA)
    clients = list(options.client or CLIENTS)
    folder = Path(tempfile.mkdtemp(prefix="penstock-conformance-"))

    def tell(cell: Cell) -> None:
        sys.stderr.write(report.one_line(cell) + "\n")

    running = json.loads(options.running.read_text()) if options.running else {}
    with Worlds(folder, running) as worlds:
        runner = Runner(worlds, tell, options.jobs)
        try:
            cells = runner.settled(runner.run(scenarios, clients, targets))
        finally:
            runner.close()
    shutil.rmtree(folder, ignore_errors=True)
    if options.cells:
        cells = _with_earlier(cells, options.cells)
    _show(cells, json_only=options.json)
    if options.record:
        write_oracle(cells)
        sys.stderr.write(f"wrote {ORACLE}\n")
    if options.document or (whole and not options.json):
        columns = [client for client in CLIENTS if any(cell.client == client for cell in cells)]
        today = datetime.now(UTC).date().isoformat()
        report.write_document(report.markdown(cells, columns, today))
        sys.stderr.write(f"wrote {report.DOCUMENT}\n")
    return 1 if any(cell.status in ("red", "none") for cell in cells) else 0


def _with_earlier(cells: list[Cell], file: Path) -> list[Cell]:
    """These cells, and those of `file` that were not run now; keeps them all there."""
    earlier = [Cell(**one) for one in json.loads(file.read_text())] if file.exists() else []
    now = {(cell.scenario, cell.client, cell.target) for cell in cells}
    kept = [c for c in earlier if (c.scenario, c.client, c.target) not in now and _meant(c)]
    cells = [*cells, *kept]
    file.write_text(json.dumps([dataclasses.asdict(cell) for cell in cells]) + "\n")
    return cells


def _meant(cell: Cell) -> bool:
    scenario = SCENARIOS.get(cell.scenario)
    return scenario is not None and (not scenario.clients or cell.client in scenario.clients)


def _show(cells: Sequence[Cell], *, json_only: bool) -> None:
    if json_only:
        sys.stdout.write(json.dumps([dataclasses.asdict(cell) for cell in cells], indent=1) + "\n")
        return
    for cell in cells:
        if cell.status in ("red", "none") and cell.diff:
            sys.stdout.write(f"\n{report.one_line(cell)}\n  " + "\n  ".join(cell.diff) + "\n")
    columns = [client for client in CLIENTS if any(cell.client == client for cell in cells)]
    sys.stdout.write("\n" + report.text_table(report.table(cells, columns)) + "\n\n")
    for cell in cells:
        if cell.status in ("red", "none"):
            sys.stdout.write(report.one_line(cell) + "\n")
    sys.stdout.write(report.summary(cells) + "\n")


def _chosen(names: Sequence[str], sections: Sequence[str]) -> list[Scenario]:
    if unknown := [name for name in names if name not in SCENARIOS]:
        sys.stderr.write(f"no scenario is named {unknown[0]!r}; --list shows them\n")
        raise SystemExit(2)
    return [
        one
        for one in SCENARIOS.values()
        if (not names and not sections) or one.name in names or one.section in sections
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make conformance", description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the scenarios and end")
    parser.add_argument("--scenario", nargs="+", default=[], metavar="NAME", help="only these")
    parser.add_argument("--section", nargs="+", default=[], metavar="NAME", help="only these sections")
    parser.add_argument("--client", nargs="+", default=[], choices=CLIENTS, help="only these")
    parser.add_argument("--target", nargs="+", default=[], choices=TARGETS, help="only these, and Kafka")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"cells at the same time (default {JOBS})")
    parser.add_argument("--json", action="store_true", help="cells as JSON in place of the table")
    parser.add_argument(
        "--cells",
        type=Path,
        metavar="FILE",
        help="cells of earlier runs: taken over, and kept for later ones",
    )
    parser.add_argument("--record", action="store_true", help="keep Kafka's outcomes of the fast scenarios")
    parser.add_argument(
        "--running", type=Path, metavar="FILE", help="clusters that run already: JSON, address by target"
    )
    parser.add_argument("--document", action="store_true", help="write docs/compatibility.md even of a part")
    return parser


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of scenarios that hang must not keep the process
