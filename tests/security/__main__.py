"""Every attack against a plain cluster, and what each costs: `make security`.

Exit code 0 when each was refused or bounded and no process or node was lost.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from security.measure import Cost, as_json, attackable, cost_of, names

SECONDS = 8.0


def main() -> int:
    """Run, print, say how it went."""
    parser = argparse.ArgumentParser(prog="python -m security", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="attacks whose names hold one of these")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="least time under each attack")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    words = options.only.split()
    chosen = [n for n in names() if not words or any(w in n for w in words)]
    costs: list[Cost] = []
    for name in chosen:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-security-") as directory,
            attackable(Path(directory) / "cluster") as (cluster, target),
        ):
            cost = cost_of(name, cluster, target, options.seconds)
        costs.append(cost)
        print(_line(cost), flush=True)
        if options.json:
            options.json.write_text(as_json(costs))
    return 0 if all(c.refused and not c.lost for c in costs) else 1


def _line(c: Cost) -> str:
    return (
        f"{c.attack:<18} refused {'yes' if c.refused else 'NO':<4} lag {c.lag_ms:7.0f} ms  "
        f"memory {c.memory_mb:+6.1f} MB  lost {c.lost}  p99 x {c.p99_ratio:5.1f}  "
        f"128 KiB at most {c.large_ms:6.0f} ms  failed {c.failures:3}  {c.said}"
    )


if __name__ == "__main__":
    sys.exit(main())
