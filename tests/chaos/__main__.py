"""`python -m chaos`: the scenario matrix with real processes, and a table at the end.

Exit status 0 when every scenario kept every promise or was skipped, 1 otherwise (something
lost or doubled, a deadline passed, or too little load for the run to prove anything).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import chaos.scenarios  # noqa: F401 - registers them
from chaos.report import one_line, table
from chaos.run import Result
from chaos.runner import as_json, run_all
from chaos.scenario import SCENARIOS, Scenario
from chaos.scene import Phases

SHORT = ("leader-kill", "leader-stop", "everything-kill", "leader-isolated", "transactions-leader-kill")
SHORT_SECONDS = 3.0


class Printer:
    """A line for each result as it comes; quiet with --json."""

    def __init__(self, count: int, quiet: bool) -> None:
        self._count, self._quiet, self._done = count, quiet, 0

    def __call__(self, result: Result) -> None:
        self._done += 1
        file = sys.stderr if self._quiet else sys.stdout
        file.write(f"[{self._done}/{self._count}] {one_line(result)}\n")
        file.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        width = max(map(len, SCENARIOS))
        for scenario in SCENARIOS.values():
            why = scenario.missing()
            sys.stdout.write(
                f"{scenario.name:<{width}}  {scenario.what}{f'  (skipped: {why})' if why else ''}\n"
            )
        return 0
    chosen = _chosen(options.scenario, options.short)
    seconds = options.seconds or (SHORT_SECONDS if options.short else 20.0)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    parent = options.dir or Path(tempfile.mkdtemp(prefix="penstock-chaos-"))
    parent.mkdir(parents=True, exist_ok=True)
    sys.stderr.write(f"seed {seed}, {len(chosen)} scenarios, {seconds:g} s before, during and after each\n")
    phases = Phases(seconds, seconds, seconds)
    results = run_all(
        chosen,
        phases,
        seed,
        parent,
        keep=options.keep,
        is_secure=options.secure,
        is_transactional=options.transactions,
        is_audited=options.audit,
        tell=Printer(len(chosen), quiet=options.json),
    )
    if options.json:
        sys.stdout.write(json.dumps({"seed": seed, "results": as_json(results)}, indent=2) + "\n")
    else:
        sys.stdout.write("\n" + table(results) + "\n")
    bad = [result for result in results if not result.good]
    if bad:
        sys.stderr.write(f"{len(bad)} of {len(results)} went wrong; logs and data are under {parent}\n")
    elif not options.dir and not options.keep:
        parent.rmdir()
    return 1 if bad or len(results) < len(chosen) else 0


def _chosen(names: Sequence[str], short: bool) -> list[Scenario]:
    if unknown := [name for name in names if name not in SCENARIOS]:
        sys.stderr.write(f"no scenario is named {unknown[0]!r}; --list shows them\n")
        raise SystemExit(2)
    if names:
        return [SCENARIOS[name] for name in names]
    return [SCENARIOS[name] for name in SHORT] if short else list(SCENARIOS.values())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--scenario", nargs="+", default=[], metavar="NAME", help="only these, in this order")
    parser.add_argument("--list", action="store_true", help="name the scenarios and end")
    parser.add_argument(
        "--short", action="store_true", help=f"{', '.join(SHORT)}, {SHORT_SECONDS:g} s a phase"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="load before, during and after each fault, in s (default 20)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="what is random is so by this number")
    parser.add_argument(
        "--secure",
        action="store_true",
        help="TLS between processes, SASL_SSL listeners and ACLs, as of `local up --secure`",
    )
    parser.add_argument(
        "--transactions",
        action="store_true",
        help="a transactional load beside the ordinary one, in every scenario that is run",
    )
    parser.add_argument(
        "--audit",
        action="store_true",
        help="at the end of each scenario `penstock spark run audit` of what was written (java)",
    )
    parser.add_argument("--json", action="store_true", help="results as JSON in place of the table")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where clusters live (default: a new one in /tmp)"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and data of good runs too")
    return parser


if __name__ == "__main__":
    sys.exit(main())
