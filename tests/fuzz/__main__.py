"""Fuzz every parser: `PYTHONPATH=tests python -m fuzz --executions 10000000 [--seed N] [--only WORDS]`.

`make fuzz` calls it. Executions are spread over the targets by their shares; each target runs in a process of
its own, one after another, under atheris. Exit code 0 when no input crashed, hung, or made memory grow, 1
else: the input is then left for a look, and printed. A seed repeats a run as far as libFuzzer does.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fuzz.runner import Fuzzer, Outcome, table
from fuzz.targets import TARGETS

ROUND_EXECUTIONS: Final = 1_000_000
"""Long runs go round the targets, so that one that is interrupted has seen them all."""


def spread(executions: int, names: Sequence[str]) -> dict[str, int]:
    """Executions of each target, by its share of all of them."""
    whole = sum(TARGETS[name].share for name in names)
    counts = {name: executions * TARGETS[name].share // whole for name in names}
    counts[names[0]] += executions - sum(counts.values())
    return counts


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Its words."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description="Fuzz every parser of bytes from outside."
    )
    parser.add_argument("--executions", type=int, default=1_000_000, help="inputs in all (default 1000000)")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="targets whose names contain one of these"
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--dir", type=Path, default=None, help="where corpora are kept, and found by the next run"
    )
    parser.add_argument("--list", action="store_true", help="name the targets, and run nothing")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run them all."""
    options = parse(arguments)
    words = options.only.replace(",", " ").split()
    names = [name for name in TARGETS if not words or any(word in name for word in words)]
    if options.list or not names:
        print("\n".join(names or TARGETS))
        return 0 if names else 2
    if importlib.util.find_spec("atheris") is None:
        print("atheris is not installed (it has wheels for Linux): nothing is fuzzed", file=sys.stderr)
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1, 1 << 32)
    directory = options.dir or Path(tempfile.mkdtemp(prefix="penstock-fuzz-"))
    print(
        f"{options.executions} executions over {len(names)} targets, seed {seed}, in {directory}", flush=True
    )
    outcomes: dict[str, Outcome] = {}
    rounds = -(-options.executions // ROUND_EXECUTIONS)
    try:
        with Fuzzer(directory) as fuzzer:
            for number in range(rounds):
                for name, count in spread(options.executions // rounds, names).items():
                    outcome = fuzzer.fuzz(name, count, seed + number)
                    print(outcome.line(), flush=True)
                    if name in outcomes:
                        outcomes[name].add(outcome)
                    else:
                        outcomes[name] = outcome
                    if options.json is not None:
                        figures = {"seed": seed, "targets": [one.figures() for one in outcomes.values()]}
                        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    except KeyboardInterrupt:
        print("interrupted")
    print(table(list(outcomes.values())))
    return int(any(outcome.failure for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
