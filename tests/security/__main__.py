"""Every attack against a plain cluster and against a secure one, and what each costs: `make security`.

Exit code 0 when each was refused or bounded, no process or node was lost, and lag, memory and the p99 of honest clients
are within their bounds (`security.judge`). A row whose lag or p99 is near its bound or beyond is measured three times;
the medians count.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from security.judge import MEASURED, is_near, judge, one_of
from security.measure import Cost, as_json, attackable, cost_of, load, runs

SECONDS = 8.0


def main() -> int:
    """Run, print, say how it went."""
    parser = argparse.ArgumentParser(prog="python -m security", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="attacks whose names hold one of these")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="least time under each attack")
    parser.add_argument("--on", choices=("plain", "secure", "both"), default="both", help="which cluster")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    words = options.only.split()
    costs: list[Cost] = []
    for on in ("plain", "secure") if options.on == "both" else (options.on,):
        secure = on == "secure"
        print(f"{on}:", flush=True)
        for name, who in runs(secure=secure):
            if words and not any(word in name for word in words):
                continue
            measured = [_measured(name, who, on, options.seconds)]
            while is_near(measured[0]) and len(measured) < MEASURED:
                measured.append(_measured(name, who, on, options.seconds))
            costs.append(one_of(measured))
            print(_line(costs[-1]), flush=True)
            if options.json:
                options.json.write_text(as_json(costs))
    missed = judge(costs, frozenset(c.attack for c in costs if hasattr(load(c.attack), "IS_NO_ATTACK")))
    for line in missed:
        print(f"MISSED: {line}")
    print(f"{len(costs)} runs, {len(missed)} bounds missed")
    return 1 if missed or not costs else 0


def _measured(name: str, who: str, on: str, seconds: float) -> Cost:
    """At a new cluster."""
    with (
        tempfile.TemporaryDirectory(prefix="penstock-security-") as directory,
        attackable(Path(directory) / "cluster", secure=on == "secure") as (cluster, target),
    ):
        return replace(cost_of(name, who, cluster, target, seconds), cluster=on)


def _line(c: Cost) -> str:
    again = (
        "  (measured: "
        + "; ".join(
            f"{lag:.0f} ms, x {ratio:.1f}" for lag, ratio in zip(c.lags_ms, c.p99_ratios, strict=True)
        )
        + ")"
    )
    return (
        f"{c.attack:<18} {c.who:<21} refused {'yes' if c.refused else 'NO':<4} lag {c.lag_ms:7.0f} ms  "
        f"memory {c.memory_mb:+6.1f} MB  lost {c.lost}  p99 x {c.p99_ratio:5.1f}  "
        f"128 KiB at most {c.large_ms:6.0f} ms  failed {c.failures:3}  {c.said}{again if c.lags_ms else ''}"
    )


if __name__ == "__main__":
    sys.exit(main())
