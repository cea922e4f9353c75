"""`python -m wheels`: README's lines in environments that hold the built wheels and what they ask for, and a table.

Wheels of all packages are built, and installed with what they need from where pip is told to look, into one new
environment after the other (`--list`). README's lines for a local cluster, the command and Spark, and those of the
pages that it points to for them, are run there: real processes, real Spark, on loopback, where the checkout cannot be
seen. Then every extra is installed, and every module imported. Exit code 0 when all went well. Needs root, Linux,
Java 17 and 3 GB of disk.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from wheels import apart
from wheels.runs import KINDS, ROOT, Environment, Result, table


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.list:
        sys.stdout.write("".join(f"{kind.name:<8}{kind.what}\n" for kind in KINDS))
        return 0
    names = options.only.split() or [kind.name for kind in KINDS]
    if unknown := set(names) - {kind.name for kind in KINDS}:
        sys.stderr.write(
            f"no environment {', '.join(sorted(unknown))}: there are {', '.join(k.name for k in KINDS)}\n"
        )
        return 2
    if reason := apart.missing() or ("" if shutil.which("java") else "no java here: Spark needs Java 17"):
        sys.stderr.write(f"{reason}\n")
        return 2
    told = sys.stderr if options.json else sys.stdout

    def say(line: str) -> None:
        told.write(f"{line}\n")
        told.flush()

    # As Ctrl-C: what was made is cleared away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    scratch = Path(tempfile.mkdtemp(prefix="penstock-wheels-"))
    results: list[Result] = []
    try:
        for kind in KINDS:
            if kind.name in names:
                folder = scratch / kind.name
                results.append(Environment(kind, folder, options.python, say).run())
                if not (options.keep and results[-1].failed):
                    shutil.rmtree(folder)
    finally:
        if options.keep:
            say(f"kept: {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    if options.json:
        sys.stdout.write(json.dumps(_document(results), indent=2) + "\n")
    else:
        sys.stdout.write(f"\n{table(results)}")
    return 0 if all(result.is_ok for result in results) else 1


def _document(results: Sequence[Result]) -> dict[str, object]:
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=8", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "ok": all(result.is_ok for result in results),
        "environments": [result.as_json() for result in results],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make wheels-test", description=__doc__)
    parser.add_argument("--only", default="", metavar="NAMES", help="some environments")
    parser.add_argument("--list", action="store_true", help="name the environments and end")
    parser.add_argument("--json", action="store_true", help="the results as JSON in place of the table")
    parser.add_argument(
        "--keep", action="store_true", help="leave an environment where something failed for a look"
    )
    parser.add_argument(
        "--python", default=sys.executable, metavar="PROGRAM", help="make environments of another Python"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
