"""Crash runs from the command line: `PYTHONPATH=tests python -m crash kill-all --rounds 100`.

`make kill-all`, `make power-cut` and `make failpoints` call it. Exit code 0 when nothing
was lost, 1 when something was; the directory is then left for a look.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from pathlib import Path

from crash.rounds import run_rounds


def parser() -> argparse.ArgumentParser:
    """Its words."""
    top = argparse.ArgumentParser(prog="python -m crash", description="Crash a real cluster on purpose.")
    kinds = top.add_subparsers(dest="kind", required=True)
    for kind, text in (
        ("kill-all", "kill -9 of every process at once under load, again and again"),
        ("power-cut", "the same, and what was not synced is gone"),
        ("failpoints", "kill a process at every named failpoint, under load"),
    ):
        one = kinds.add_parser(kind, help=text, description=text)
        one.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
        one.add_argument(
            "--json", type=Path, default=None, metavar="FILE", help="write the figures there too"
        )
        one.add_argument("--dir", type=Path, default=None, help="where the cluster lives (a new directory)")
        if kind == "failpoints":
            one.add_argument(
                "--only", default="", metavar="WORDS", help="names that contain one of these words"
            )
            one.add_argument("--list", action="store_true", help="name the failpoints and how each is met")
        else:
            one.add_argument("--rounds", type=int, default=100 if kind == "kill-all" else 20)
        if kind == "power-cut":
            one.add_argument("--durability", choices=("fsync", "replicated"), default="fsync")
    return top


def main() -> int:
    """Run one kind."""
    options = parser().parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    directory = options.dir or Path(tempfile.mkdtemp(prefix="penstock-crash-"))
    print(f"{options.kind}, seed {seed}, in {directory}", flush=True)

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        if options.kind == "failpoints":
            from crash.matrix import run_matrix

            figures, lines, ok = run_matrix(directory, seed, say, options.only.split(), listing=options.list)
        else:
            report = run_rounds(
                directory,
                options.rounds,
                seed,
                say,
                power_cut=options.kind == "power-cut",
                durability=getattr(options, "durability", "fsync"),
            )
            figures, lines, ok = report.to_json(), report.lines(), True
    except AssertionError as error:
        print(f"FAILED: {error}\nseed {seed}; data and logs are left in {directory}", file=sys.stderr)
        return 1
    print("\n".join(lines))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if options.dir is None and ok:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
