"""`make simulate`: see `docs/testing/simulation.md`.

python -m simulation --seeds 1000          seeds 1 to 1000, on all cores
python -m simulation --seed 17             one seed, with its log on stderr (-v)
python -m simulation --planted             every planted bug, until it is found
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--seed", type=int, help="this one alone, twice: it must replay to the same event")
    parser.add_argument("--jobs", type=int, default=0, help="processes; 0 = one per core")
    parser.add_argument("--json", metavar="FILE", help="write the result there, - for stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="with --seed: the log of all processes")
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first failing seed")
    parser.add_argument("--planted", nargs="?", const="all", metavar="NAME", help="plant bugs, or that one")
    parser.add_argument("--bug", metavar="NAME", help="with --seed: replay it with that bug planted")
    parser.add_argument("--control", metavar="NAME", help="with --seed: that bug's settings, not the bug")
    parser.add_argument("--most", type=int, default=300, help="seeds that a planted bug may stay hidden")
    return parser.parse_args()


def main() -> int:
    """Exit code 0 when every seed held (or every planted bug was found)."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of strings must have one order in every process.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]])
    arguments = _parse()
    if arguments.planted:
        from simulation.planted import run_planted

        return run_planted(arguments)
    if arguments.seed is not None:
        return _one(arguments)
    return _many(arguments)


def _one(arguments: argparse.Namespace) -> int:
    from simulation.planted import planted
    from simulation.report import describe, fail_text, quiet, write_json
    from simulation.world import run_seed

    quiet()
    with planted(arguments.control or arguments.bug, control=bool(arguments.control)):
        result, world = run_seed(arguments.seed, verbose=arguments.verbose)
        print(describe(result))
        if result.violation:
            print(fail_text(result, arguments.bug or ""))
        if world.violation is not None and world.violation.__cause__ is not None:
            traceback.print_exception(world.violation.__cause__)
        # A control is compared with the bug's run, not with itself.
        again = result if arguments.verbose or arguments.control else run_seed(arguments.seed)[0]
    if again.digest != result.digest:
        print(f"NOT REPLAYED: digest {again.digest:016x} the second time")
        return 2
    if arguments.json:
        write_json(arguments.json, {"seed": result.seed, "ok": result.ok, "digest": result.digest})
    return 0 if result.ok else 1


def _many(arguments: argparse.Namespace) -> int:
    from simulation.report import Totals, cores, describe, fail_text, run_many, write_json

    totals = Totals()
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    shown = time.monotonic()
    for result in run_many(seeds, arguments.jobs or cores()):
        totals.add(result)
        if not result.ok:
            print(describe(result))
            print(fail_text(result), flush=True)
            if not arguments.keep_going:
                break
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(totals.line(), file=sys.stderr, flush=True)
            if arguments.json and arguments.json != "-":
                write_json(arguments.json, totals.as_json())
    print(totals.text())
    if arguments.json:
        write_json(arguments.json, totals.as_json())
    return 1 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
