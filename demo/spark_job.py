"""The PySpark job: `python -m demo.spark_job GATEWAY OUTPUT` in a process of its own.

It reads the topic through the gateway with no jar, and leaves in OUTPUT a Parquet table
(per carrier and month: flights, cancellations, delay quantiles) and `spark.json` with its
totals and timings. Exit code 1 and one line on stderr when it fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from demo.flights import QUANTILES
from demo.traffic import TOPIC

TABLE = "delays_by_carrier_and_month.parquet"
RESULT = "spark.json"
SCHEMA = "seq int, month int, carrier string, dep_time int, dep_delay int"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a job of seconds, the second compiler and a parallel collector cost more than they bring."""
LOG4J = """\
rootLogger.level = error
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n
"""


def run(gateway: str, output: Path) -> dict[str, Any]:
    """Read, aggregate, write; returns totals and timings."""
    from pyspark.sql import functions as f

    begun = time.perf_counter()
    spark = _session(output)
    try:
        started = time.perf_counter()
        records = spark.read.format("penstock").option("gateway", gateway).option("subscribe", TOPIC).load()
        events = records.select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("e")).select("e.*")

        def summary(*by: str) -> Any:
            delays = f.percentile("dep_delay", f.array(*map(f.lit, QUANTILES)))
            return (
                events.groupBy(*by)
                .agg(
                    f.count("*").alias("flights"),
                    f.count_if(f.isnull("dep_time")).alias("cancelled"),
                    delays.alias("d"),
                )
                .select(
                    *by,
                    "flights",
                    "cancelled",
                    *(f.col("d")[i].alias(f"delay_p{round(q * 100)}") for i, q in enumerate(QUANTILES)),
                )
                .orderBy(*by)
            )

        summary("carrier", "month").coalesce(1).write.mode("overwrite").parquet(str(output / TABLE))
        wrote = time.perf_counter()
        carriers = [row.asDict() for row in summary("carrier").collect()]
        again = time.perf_counter()
        rows = records.count()
        done = time.perf_counter()
        return {
            "rows": rows,
            "carriers": carriers,
            "session_s": started - begun,
            "first_job_s": wrote - started,
            "warm_job_s": again - wrote,
            "count_s": done - again,
        }
    finally:
        spark.stop()


def _session(output: Path) -> Any:
    """A local Spark that listens on loopback alone, shows no bars and keeps its log in a file."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    log4j = output / "log4j2.properties"
    log4j.write_text(LOG4J.format(log=output / "spark.log"))
    builder: Any = SparkSession.builder
    return (
        builder.master("local[2]")
        .appName("penstock-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.extraJavaOptions", f"{JAVA_OPTIONS} -Dlog4j2.configurationFile=file:{log4j}")
        .getOrCreate()
    )


def main() -> int:
    """Run the job with the arguments of the command line."""
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m demo.spark_job GATEWAY OUTPUT\n")
        return 2
    output = Path(sys.argv[2])
    try:
        result = run(sys.argv[1], output)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        sys.stderr.write(f"{type(error).__name__}: {lines[0] if lines else ''}\n")
        return 1
    (output / RESULT).write_text(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
