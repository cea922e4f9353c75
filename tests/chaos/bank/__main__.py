"""`python -m chaos.bank`: money is moved while everything is hurt, round after round, and a table at the end.

Exit status 0 when every round kept every promise, 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from chaos.bank.faults import FAULTS
from chaos.bank.report import lines_of, table
from chaos.bank.round import HOLD_S, PROTOCOLS, RATE_PER_S, Plan, Result, run_round, totals
from support.java import missing_java

ROUNDS = 20


class Interrupted(BaseException):
    """Someone asked the whole run to end: no failure of a round."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        width = max(map(len, FAULTS))
        for fault in FAULTS.values():
            sys.stdout.write(f"{fault.name:<{width}}  {fault.what}\n")
        return 0
    if unknown := [name for name in options.only if name not in FAULTS]:
        sys.stderr.write(f"no fault is named {unknown[0]!r}; --list shows them\n")
        return 2
    if why := missing_java():
        sys.stderr.write(f"half of the members cannot run here: {why}\n")
        return 2
    left_out = {name: why for name, fault in FAULTS.items() if (why := fault.missing())}
    if unable := [name for name in options.only if name in left_out]:
        sys.stderr.write(f"{unable[0]}: {left_out[unable[0]]}\n")
        return 2
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    parent = options.dir or Path(tempfile.mkdtemp(prefix="penstock-bank-"))
    parent.mkdir(parents=True, exist_ok=True)
    faults = tuple(options.only) or tuple(name for name in FAULTS if name not in left_out)
    plan = Plan(faults, HOLD_S, options.rate, options.protocol or "")
    _say(f"seed {seed}, {options.rounds} rounds of {len(plan.faults)} faults, in {parent}")
    if not options.only:
        for name, why in left_out.items():
            _say(f"left out, for this machine cannot do it: {name}: {why}")
    signal.signal(signal.SIGTERM, _interrupt)
    results: list[Result] = []
    for number in range(options.first, options.first + options.rounds):
        try:
            results.append(run_round(number, seed, plan, parent, _say, keep=options.keep))
        except (KeyboardInterrupt, Interrupted):
            _say("cut short")
            break
        _say("\n".join(lines_of(results[-1])))
        if options.json is not None:
            told = {"seed": seed, "results": [one.as_json() for one in results], "totals": totals(results)}
            options.json.write_text(json.dumps(told, indent=2) + "\n")
    _say("\n" + table(results))
    bad = [result for result in results if not result.good]
    if bad:
        sys.stderr.write(
            f"{len(bad)} of {len(results)} rounds went wrong; logs and data are under {parent}\n"
        )
    elif not options.dir and not options.keep and len(results) == options.rounds:
        parent.rmdir()
    return 1 if bad or len(results) < options.rounds else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _interrupt(_number: int, _frame: object) -> None:
    raise Interrupted


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make bank", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, metavar="N")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="number of the first round")
    parser.add_argument("--seed", type=int, metavar="N", help="what is random is so by this number")
    parser.add_argument("--only", nargs="+", default=[], metavar="FAULT", help="these faults, in drawn order")
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    parser.add_argument("--protocol", choices=PROTOCOLS, help="of the group (default: by the seed)")
    parser.add_argument("--rate", type=float, default=RATE_PER_S, metavar="N", help="orders per second")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, round by round")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where clusters live (default: in /tmp)")
    parser.add_argument("--keep", action="store_true", help="keep logs and data of good rounds too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
