"""The Java client: compiled once for each text of it, with Kafka's own jars, and what it needs to come in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.peer import compile_java, fetch_jars
from bench.runner.machine import Missing

SOURCES: Final = Path(__file__).resolve().parent / "native"
JVM: Final = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-Dorg.apache.logging.log4j.level=OFF")
MAIN: Final = "BenchDriver"


def build() -> tuple[str, ...]:
    """How the client is started. Raises Missing with what javac says."""
    jars = f"{fetch_jars()}/*"
    try:
        classes = compile_java(sorted(SOURCES.glob("*.java")), jars, "bench-driver")
    except RuntimeError as error:
        raise Missing(f"javac does not compile the Java client: {str(error).splitlines()[0]}") from None
    return ("java", *JVM, "-cp", f"{classes}{os.pathsep}{jars}", MAIN)


def java_entry(client: Mapping[str, str]) -> dict[str, str]:
    """Settings of librdkafka to come in, as the Java client takes them. Raises ValueError for one that it lacks."""
    rest = dict(client)
    user, password = rest.pop("sasl.username", ""), rest.pop("sasl.password", "")
    made: dict[str, str] = {}
    if user:
        made["sasl.jaas.config"] = (
            "org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{_quoted(user)}" password="{_quoted(password)}";'
        )
    for name, value in rest.items():
        match name:
            case "ssl.ca.location":
                made |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": value}
            case "sasl.mechanism" | "sasl.mechanisms":
                made["sasl.mechanism"] = value
            case "security.protocol":
                made[name] = value.upper()
            case _:
                raise ValueError(f"the Java client has no word for {name}")
    return made


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
