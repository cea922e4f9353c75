"""This checkout beside another one of Penstock: the same client, one after the other, in pairs.

    git worktree add ../before v0.1.0 && make -C ../before setup
    .venv/bin/python -m bench.versions --before ../before --pairs 5
    .venv/bin/python -m bench.versions --before ../before --cases gateway,direct --megabytes 100 --json -

Each pair starts both versions in turn (never at once), a cluster of its own each time, so that noise of the
machine falls on both. Read the ratio: lowest, median and highest over the pairs, after divided by
before. Records go out with acks=all and RF 3 from kcat (librdkafka, C) and are read back.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from bench.compare import ROOT, ack_latencies_ms, create_topic, kcat_seconds
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Case:
    """One way in, and what is sent."""

    address: str
    partitions: int
    record_bytes: int
    durability: str = "fsync"


CASES = {
    "gateway": Case("bootstrap", 1, 1024),
    "direct": Case("direct_bootstrap", 1, 1024),
    "direct-replicated": Case("direct_bootstrap", 1, 1024, "replicated"),
    "gateway-100-partitions": Case("bootstrap", 100, 1024),
    "direct-100-bytes": Case("direct_bootstrap", 1, 100),
}


def measure(root: Path, case: Case, folder: Path, records: Path, megabytes: int) -> dict[str, float]:
    """One version, once: started, filled, read, ended."""
    command = [str(root / ".venv/bin/penstock"), "local"]
    directory = ["--dir", str(folder)]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [*command, "up", *directory, "--port", "29092", "--json"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"{root}: penstock local up failed: {done.stderr}")
        told: dict[str, Any] = json.loads(done.stdout)
        bootstrap = told[case.address]
        config = {"min.insync.replicas": "2", "penstock.durability": case.durability}
        create_topic(bootstrap, "bench", config, case.partitions)
        ack_latencies_ms(bootstrap, "bench", 1)
        found = {"start to first ack, s": time.perf_counter() - begin}
        processes = {row["pid"]: (row["role"], psutil.Process(row["pid"])) for row in told["processes"]}
        cpu_before = _cpu_s(processes)
        one = ["-p", "0"] if case.partitions == 1 else []
        # linger and batch size are librdkafka's throughput settings; equal for both.
        produce_s = kcat_seconds(
            *("-P", "-b", bootstrap, "-t", "bench", *one, "-X", "acks=all", "-X", "linger.ms=5"),
            *("-X", "batch.size=1000000", "-X", "queue.buffering.max.kbytes=262144", "-l", str(records)),
        )
        sent = megabytes * 1024 * 1024 / 1e6
        found["produce, MB/s"] = sent / produce_s
        found["CPU s per GB produced"] = (_cpu_s(processes) - cpu_before) / (sent / 1000)
        consume_s = kcat_seconds(
            *("-C", "-b", bootstrap, "-t", "bench", *one, "-o", "beginning", "-e", "-f", "", "-q")
        )
        found["consume, MB/s"] = sent / consume_s
        for role in ("controller", "storage-node", "gateway"):
            used = [p.memory_info().rss for kind, p in processes.values() if kind == role]
            found[f"RSS of a {role}, MB"] = max(used) / 1e6
        return found
    finally:
        subprocess.run([*command, "down", "--wipe", *directory], capture_output=True, check=False)


def _cpu_s(processes: dict[int, tuple[str, psutil.Process]]) -> float:
    return sum(sum(process.cpu_times()[:2]) for _, process in processes.values())


def show(name: str, pairs: list[tuple[dict[str, float], dict[str, float]]]) -> None:
    """A case as a table."""
    case = CASES[name]
    table = Table(
        title=f"{name}: {case.record_bytes} B records, {case.partitions} partition(s), RF 3, {case.durability}"
    )
    for column in ("what", "before", "after", "ratio lowest / median / highest"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what in pairs[0][0]:
        before, after = [p[0][what] for p in pairs], [p[1][what] for p in pairs]
        ratios = sorted(b / a for a, b in zip(before, after, strict=True))
        spread = f"{ratios[0]:.2f} / {statistics.median(ratios):.2f} / {ratios[-1]:.2f}"
        table.add_row(what, f"{statistics.median(before):.2f}", f"{statistics.median(after):.2f}", spread)
    Console(width=130).print(table)


def main() -> int:
    """Exit code 0 when every run came to its end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="a checkout with its own .venv")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=200, help="MiB of records a run")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated: " + ", ".join(CASES))
    parser.add_argument("--json", help="write every run there, - for stdout")
    options = parser.parse_args()
    before = options.before.resolve()
    if not (before / ".venv/bin/penstock").exists():
        raise SystemExit(f"{before} has no .venv/bin/penstock: run `make setup` there")
    if shutil.which("kcat") is None:
        raise SystemExit("kcat is the client of these runs: install the package kcat, then run this again")
    unknown = set(options.cases.split(",")) - CASES.keys()
    if unknown:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    result: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch:
        for name in options.cases.split(","):
            case = CASES[name]
            records = Path(scratch) / f"records-{case.record_bytes}"
            line = b"x" * case.record_bytes + b"\n"
            with records.open("wb") as file:
                for _ in range(options.megabytes):
                    file.write(line * (1024 * 1024 // case.record_bytes))
            pairs = result[name] = []
            for number in range(options.pairs):
                both: list[dict[str, float]] = []
                for root in (before, ROOT):
                    subprocess.run(["sync"], check=True)
                    folder = Path(scratch) / f"{name}-{number}-{len(both)}"
                    both.append(measure(root, case, folder, records, options.megabytes))
                    shutil.rmtree(folder, ignore_errors=True)
                pairs.append((both[0], both[1]))
                print(f"{name}: pair {number + 1} of {options.pairs}", file=sys.stderr, flush=True)
            show(name, pairs)
    if options.json:
        text = json.dumps(result, indent=1)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
