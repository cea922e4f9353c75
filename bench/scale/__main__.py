"""Metadata of 12 to 200 nodes with 1,000 leaderships each: CPU seconds and bytes of what happens to them.

    .venv/bin/python -m bench.scale [--quick] [--json FILE]

Real placement, image, fencing and planner in one process. Sessions, the queue of commands, gateways and their
connections are not in it. Once each: the times are CPU, and still those of a single run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from bench.scale.measure import Row, everything
from bench.scale.model import PARTITIONS_PER_NODE, make
from rich.console import Console
from rich.table import Table

SIZES = (12, 50, 100, 200)
QUICK = (6, 12)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, a tenth of the partitions")
    parser.add_argument("--json", type=Path, help="write the figures here")
    given = parser.parse_args(argv)
    per_node = PARTITIONS_PER_NODE // 10 if given.quick else PARTITIONS_PER_NODE
    rows: list[Row] = []
    held: dict[int, float] = {}
    for nodes in QUICK if given.quick else SIZES:
        found, held[nodes] = everything(make(nodes, per_node))
        rows += found
    table = Table("what", "nodes", "partitions", "CPU s", "bytes", "longest slice, ms")
    for row in sorted(rows, key=lambda r: (r.what, r.nodes)):
        longest = f"{row.longest_ms:.2f}" if row.longest_ms else "-"
        table.add_row(
            row.what,
            str(row.nodes),
            f"{row.partitions:,}",
            f"{row.cpu_s:.4f}",
            f"{row.sent_bytes:,}",
            longest,
        )
    console = Console(width=120)
    console.print(table)
    for nodes, each in held.items():
        console.print(f"{nodes} nodes: an image takes {each:.0f} bytes of memory for each partition")
    if given.json:
        told = {"rows": [asdict(r) for r in rows], "image_bytes_per_partition": held}
        given.json.write_text(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
