"""Put the figures of a run into its page under docs/results/, between the marks that are there for them.

    make simulate SEEDS=4000 JSON=seeds.json && .venv/bin/python tools/results.py seeds seeds.json
    make simulate-planted JSON=planted.json  && .venv/bin/python tools/results.py planted planted.json
    PYTHONPATH=tests .venv/bin/python -m chaos --seconds 20 --json > chaos.json
    .venv/bin/python -m bench.failover --json > failover.json
    make failpoints ARGS="--json failpoints.json"
    make kill-all ROUNDS=100 ARGS="--json kill.json"; make power-cut ROUNDS=20 ARGS="--json cut.json"
    make fuzz EXECUTIONS=10000000 ARGS="--json fuzz.json"
    make fuzz EXECUTIONS=10000000 ONLY="sasl.scram" ARGS="--json scram.json"
    make security SECURITY="--json security.json"
    make bench BENCH="--json bench.json"; make bench-transactions BENCH="--json transactions.json"
    make bench-spark BENCH="--json spark.json --profile"

The first word is the kind: seeds, planted, chaos, failover, failpoints, rounds (one file per run), fuzz,
families (of fuzz targets, one file per family), security (a second file is of a run before a change), bench or
transactions (one file per occasion), spark (one file per run: all are kept).
Commit and date stand above the table: those of a bench's last document, else of HEAD and today, unless --commit and
--date say otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "docs" / "results"
MIB: Final = 1024 * 1024

Figures = Mapping[str, Any]


class Kind(NamedTuple):
    """One sort of run."""

    page: str
    commands: tuple[str, ...]
    render: Callable[[Sequence[Any]], str]
    """From what the files hold, in their order, to Markdown."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when the page is written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what the run wrote with --json")
    parser.add_argument("--commit", default="", help="what was run, when that is not HEAD")
    parser.add_argument("--date", default="", help="when, as 2026-11-21, when that is not today")
    parser.add_argument("--note", default="", help="a sentence about the machine or the run")
    options = parser.parse_args(arguments)
    try:
        held = [json.loads(file.read_text()) for file in options.files]
        kind = KINDS[options.kind]
        today = datetime.date.today().isoformat()  # noqa: DTZ011 - the writer's own day
        made = block(
            kind,
            held,
            commit=options.commit or _told(held, "commit") or _head(),
            date=options.date or _told(held, "date") or today,
            note=options.note,
        )
        page = RESULTS / kind.page
        page.write_text(put(page.read_text(), options.kind, made))
    except (OSError, LookupError, TypeError, ValueError) as error:
        print(f"{' '.join(map(str, options.files))}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(f"written: {page.relative_to(ROOT)}")
    return 0


def block(kind: Kind, held: Sequence[Any], *, commit: str, date: str, note: str = "") -> str:
    """What goes between the marks."""
    origin = f"{', '.join(f'`{command}`' for command in kind.commands)}; {commit}, {date}."
    return f"{origin}{f' {note}' if note else ''}\n\n{kind.render(held)}"


def marks(name: str) -> tuple[str, str]:
    """Begin and end of a kind's place in its page."""
    return f"<!-- {name}: written by tools/results.py -->", f"<!-- end of {name} -->"


def put(text: str, name: str, made: str) -> str:
    """`text` with `made` between the marks of `name`. Raises ValueError when they are not there."""
    begin, end = marks(name)
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page lacks {begin} or {end}; put both where the table belongs")
    return f"{head}{begin}\n\n{made}\n\n{end}{tail}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in (head, *rows)]
    lines.insert(1, "|" + "---|" * len(head))
    return "\n".join(lines)


def _told(held: Sequence[Any], name: str) -> str:
    """What the last document says itself, or ""."""
    return str(held[-1].get(name, "")) if isinstance(held[-1], Mapping) else ""


def _head() -> str:
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def _s(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.2f} s"


def _seeds(held: Sequence[Figures]) -> str:
    (run,) = held
    seeds, failed = run["seeds"], run["failed"]
    rows = [
        ("seeds", f"{seeds:,}"),
        ("failed", ", ".join(f"{one['seed']} ({one['violation']})" for one in failed) or "none"),
        ("events, all and the fewest of a seed", f"{run['events']:,}, {run['least_events']:,}"),
        ("simulated hours", f"{run['simulated_s'] / 3600:.1f}"),
        ("CPU seconds a seed", f"{run['cpu_s'] / max(1, seeds):.2f}"),
        ("events per CPU second", f"{run['events_per_cpu_s']:,}"),
    ]
    for what in ("injected", "counts"):
        rows += [(name, f"{count:,}") for name, count in sorted(run[what].items(), key=lambda kv: -kv[1])]
    return table(("what", "how many"), rows)


def _planted(held: Sequence[Figures]) -> str:
    (run,) = held
    rows = [
        (f"`{name}`", what, seeds if invariant else f"**not in {seeds}**", invariant)
        for name, what, seeds, invariant, *_ in run["planted"]
    ]
    return table(("planted bug", "what is broken", "seeds to first hit", "caught by"), rows)


def _chaos(held: Sequence[Figures]) -> str:
    rows: list[Sequence[object]] = []
    for run in held:
        for one in run["results"]:
            if one["status"] == "skipped":
                rows.append((one["scenario"], *[""] * 8, f"skipped: {'; '.join(one['notes'])}"))
                continue
            times = [_s(one[name]) for name in ("gap_s", "gap_direct_s", "next_ack_s", "recovered_s")]
            counts = [one[name] for name in ("acks_before", "acked", "lost", "duplicated")]
            rows.append((one["scenario"], *counts, *times, one["status"]))
    head = ("scenario", "acks before", "acked", "lost", "doubled", "longest gap", "gap direct", "next ack")
    seeds = ", ".join(str(run["seed"]) for run in held)
    return f"Seed {seeds}.\n\n" + table((*head, "recovered in", "result"), rows)


def _failover(held: Sequence[Sequence[Figures]]) -> str:
    (results,) = held
    rows = [
        (one["fault"], len(one["gaps_s"]), _s(statistics.median(one["gaps_s"])), _s(max(one["gaps_s"])))
        for one in results
    ]
    return table(("fault", "times", "p50", "max"), rows)


def _failpoints(held: Sequence[Figures]) -> str:
    results = sorted((one for run in held for one in run["results"]), key=lambda one: str(one["failpoint"]))
    names = ("died", "acks_per_s_before", "acked", "lost", "doubled", "longest_gap_s", "whole_again_s")
    rows = [
        (f"`{one['failpoint']}`", *(_tenths(one[name]) for name in names), one["verdict"]) for one in results
    ]
    head = (
        "failpoint",
        "died",
        "acks/s before",
        "acked",
        "lost",
        "doubled",
        "longest gap s",
        "whole again s",
    )
    return table((*head, "result"), rows)


def _tenths(value: object) -> object:
    return f"{value:.1f}" if isinstance(value, float) else value


def _rounds(held: Sequence[Figures]) -> str:
    rows = []
    for run in held:
        back = sorted(run["back_in_s"]) or [0.0]
        rows.append(
            (
                f"`make {run['kind']}`, seed {run['seed']}",
                run["rounds"],
                f"{run['acked_records']:,}",
                f"{run['lost_records']:,}",
                f"{run['acked_topics']:,}",
                f"{run['lost_topics']:,}",
                run["snapshots"],
                f"{back[len(back) // 2]:.1f} s / {back[-1]:.1f} s",
                sum(run["dropped"]) or "",
            )
        )
    head = ("run", "rounds", "records acknowledged", "lost", "topics acknowledged", "lost", "snapshots")
    return table((*head, "back after, median / most", "files and names that lost something"), rows)


_FUZZ_HEAD: Final = (
    *("target", "executions", "accepted", "per CPU second", "edges", "corpus", "peak RSS", "grown", "result"),
)


def _fuzz_rows(targets: Sequence[Figures]) -> list[Sequence[object]]:
    """A row for each, and one for all of them."""
    rows: list[Sequence[object]] = [
        (
            f"`{one['target']}`",
            f"{one['executions']:,}",
            f"{one['accepted']:,}",
            f"{one['executions_per_cpu_s']:,.0f}",
            one["edges"],
            f"{one['corpus_before']} → {one['corpus_after']}",
            f"{one['peak_rss_bytes'] // MIB} MiB",
            f"{one['grown_bytes'] / MIB:+.1f} MiB",
            one["failure"] or "ok",
        )
        for one in targets
    ]
    executions, cpu_s = sum(one["executions"] for one in targets), sum(one["cpu_s"] for one in targets)
    accepted = sum(one["accepted"] for one in targets)
    rate = executions / cpu_s if cpu_s else 0
    rows.append(("all", f"{executions:,}", f"{accepted:,}", f"{rate:,.0f}", "", "", "", "", ""))
    return rows


def _fuzz(held: Sequence[Figures]) -> str:
    (run,) = held
    return f"Seed {run['seed']}.\n\n" + table(_FUZZ_HEAD, _fuzz_rows(run["targets"]))


def _families(held: Sequence[Figures]) -> str:
    seeds = ", ".join(str(run["seed"]) for run in held)
    rows = [row for run in held for row in _fuzz_rows(run["targets"])]
    return f"Seeds {seeds}, one of each family.\n\n" + table(_FUZZ_HEAD, rows)


def _security(held: Sequence[Sequence[Figures]]) -> str:
    """One run, or one and another one of before, whose figures stand in brackets."""
    now, *others = held
    before = {(one["attack"], one["cluster"], one["who"]): one for one in others[0]} if others else {}

    def cell(one: Figures, key: str, form: Callable[[Any], str]) -> str:
        old = before.get((one["attack"], one["cluster"], one["who"]))
        return form(one[key]) + (f" ({form(old[key])})" if old is not None else "")

    def times(one: Figures, key: str, each: str, form: Callable[[Any], str]) -> str:
        measured = [form(v) for v in one.get(each, ())]
        return cell(one, key, form) + (f", of {', '.join(measured)}" if measured else "")

    rows = [
        (
            f"{one['attack'].replace('_', ' ')}: {one['text']}",
            f"{one['cluster']}, {one['who']}",
            cell(one, "refused", lambda v: "yes" if v else "no"),
            one["said"],
            times(one, "lag_ms", "lags_ms", lambda v: f"{v:,.0f}"),
            cell(one, "memory_mb", lambda v: f"{v:.0f}"),
            cell(one, "lost", str),
            times(one, "p99_ratio", "p99_ratios", lambda v: f"{v:,.1f}"),
            cell(one, "large_ms", lambda v: f"{v:,.0f}"),
            cell(one, "failures", str),
        )
        for one in now
    ]
    head = (
        "attack",
        "cluster, as whom",
        "refused or bounded",
        "what the attacker saw",
        "loop lag ms",
        "memory MB",
        "lost",
        "p99 ratio",
    )
    made = table((*head, "128 KiB at most ms", "failed"), rows)
    return f"In brackets: before the mends.\n\n{made}" if before else made


def _bench(held: Sequence[Figures]) -> str:
    # bench/ is found from the root, and this program is started from tools/.
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    from bench.runner.documents import from_json
    from bench.runner.tables import page_block

    return "\n\n".join(page_block(from_json(one)) for one in held)


def _spark(held: Sequence[Figures]) -> str:
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    from bench.connector.documents import from_json
    from bench.connector.tables import page

    return "\n\n".join(
        f"Run {number}, {one['commit']}, {one['date']}, {one['size']} size.\n\n{page(from_json(one))}"
        for number, one in enumerate(held, 1)
    )


KINDS: Final[dict[str, Kind]] = {
    "bench": Kind("bench.md", ("make bench",), _bench),
    "transactions": Kind("bench-transactions.md", ("make bench-transactions",), _bench),
    "seeds": Kind("simulation.md", ("make simulate",), _seeds),
    "planted": Kind("simulation.md", ("make simulate-planted",), _planted),
    "chaos": Kind("chaos.md", ("make chaos",), _chaos),
    "failover": Kind("chaos.md", ("python -m bench.failover",), _failover),
    "failpoints": Kind("crash.md", ("make failpoints",), _failpoints),
    "rounds": Kind(
        "crash.md",
        (
            "make kill-all",
            "make power-cut",
        ),
        _rounds,
    ),
    "fuzz": Kind("fuzz.md", ("make fuzz",), _fuzz),
    "families": Kind("fuzz.md", ('make fuzz EXECUTIONS=10000000 ONLY="..."',), _families),
    "security": Kind("security.md", ("make security",), _security),
    "spark": Kind("spark.md", ("make bench-spark",), _spark),
}


if __name__ == "__main__":
    sys.exit(main())
