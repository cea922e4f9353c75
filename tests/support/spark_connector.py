"""Spark's Kafka connector, from Maven jars: what Penstock's source is held against.

The last that was published when this was written is 4.2.0, which runs on PySpark 4.3.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from bench.peer import CACHE, only_one_fetches

CONNECTOR_VERSION = "4.2.0"
ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{CONNECTOR_VERSION}",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
"""The connector, and what it needs that PySpark does not bring."""


def connector_jars() -> list[Path]:
    """The jars; needs mvn on the first call. Processes may call it at the same time."""
    folder = CACHE / f"spark-connector-{CONNECTOR_VERSION}"
    if not (folder / "complete").exists():
        with only_one_fetches():
            if not (folder / "complete").exists():
                _fetch(folder)
    return sorted(folder.glob("*.jar"))


def _fetch(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    dependencies = ""
    for artifact in ARTIFACTS:
        group, name, version = artifact.split(":")
        dependencies += (
            f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
            "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
            "</dependency>"
        )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>connector</artifactId>"
        f"<version>1</version><dependencies>{dependencies}</dependencies></project>"
    )
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={folder}"],
        check=True,
        timeout=600,
    )  # fmt: skip
    (folder / "complete").touch()
