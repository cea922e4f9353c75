"""`python -m ops`: every proof that a cluster can be operated, one after another, and a table at the end.

Exit status 0 when all were run and nothing failed; what a machine lacks is skipped with the reason. Interrupted
(Ctrl-C, TERM) it stops the test under way, prints the table of what is done so far, and ends with 130.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ops.lines import LINES, NoSuchLineError, chosen
from ops.results import as_json, is_ok, table
from ops.runs import Interrupted, Runs, Sizes

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        width = max(len(line.name) for line in LINES)
        sys.stdout.write("".join(f"{line.name:<{width}}  {line.what}\n" for line in LINES))
        return 0
    try:
        lines = chosen(options.only.split())
    except NoSuchLineError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    interrupted = Interrupted()
    interrupted.listen()
    directory = Path(tempfile.mkdtemp(prefix="penstock-ops-"))
    sizes = Sizes(
        options.seeds, options.first, options.chaos_seconds, options.chaos_seed, options.drain_megabytes
    )
    runs = Runs(lines, sizes, directory, sys.stderr if options.json else sys.stdout, interrupted)
    try:
        complete = runs.run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        sys.stdout.write(json.dumps(as_json(runs.results, complete=complete), indent=2) + "\n")
    else:
        sys.stdout.write(f"\n{table(runs.results)}\n" + ("" if complete else "interrupted\n"))
    sys.stdout.flush()
    if not complete:
        return INTERRUPTED
    return 0 if is_ok(runs.results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make ops-test", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="lines that contain one of these words")
    parser.add_argument("--list", action="store_true", help="name the lines and end")
    parser.add_argument("--json", action="store_true", help="the results as JSON in place of the table")
    parser.add_argument("--seeds", type=int, default=Sizes.seeds, metavar="N", help="seeds of the simulation")
    parser.add_argument("--first", type=int, default=Sizes.first, metavar="N", help="the first of them")
    parser.add_argument(
        "--chaos-seconds",
        type=float,
        default=Sizes.chaos_seconds,
        metavar="S",
        help="load before, during and after each fault, in s (default 20)",
    )
    parser.add_argument("--chaos-seed", type=int, metavar="N", help="what is random in chaos is so by it")
    parser.add_argument(
        "--drain-megabytes",
        type=int,
        default=Sizes.drain_megabytes,
        metavar="MB",
        help="of the topic that is drained at a fixed rate (default 5000; it takes four times that of disk)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
