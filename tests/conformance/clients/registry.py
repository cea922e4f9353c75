"""Which clients there are, and why one cannot run here."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path

from conformance.client import Client
from conformance.remote import Remote

_MODULES = {
    "confluent-kafka": "conformance.clients.confluent",
    "kafka-python": "conformance.clients.kafka_python",
    "aiokafka": "conformance.clients.aio",
    "kcat": "conformance.clients.kcat",
    "java": "conformance.java.driver",
    "java-3.9": "conformance.java.older",
    "franz-go": "conformance.clients.franz_go",
    "raw": "conformance.clients.raw",
}
JAVA = "java"
JAVA_39 = "java-3.9"
FRANZ_GO = "franz-go"
RAW = "raw"
_IN_PROCESS = (JAVA, JAVA_39, RAW, FRANZ_GO)
"""The Java clients have their JVM and franz-go a process that its module starts, `raw` nothing that could hang."""
CLIENTS = ("confluent-kafka", "kafka-python", "aiokafka", "kcat", JAVA, JAVA_39, FRANZ_GO, RAW)
"""Columns of the matrix. `raw` is no client: frames by hand, for scenarios that no client would do."""
ONLY_NAMED = (JAVA_39, FRANZ_GO, RAW)
"""Play only the scenarios that name them."""


def missing(name: str) -> str | None:
    """Why a client cannot run on this machine."""
    if name == "kcat" and shutil.which("kcat") is None:
        return "kcat is not installed: apt-get install kcat"
    if name in (JAVA, JAVA_39, FRANZ_GO):
        found: str | None = importlib.import_module(_MODULES[name]).missing()
        return found
    return None


def make(name: str, bootstrap: str, log: Path | None = None) -> Client:
    """A client that talks to `bootstrap`: in a process of its own, which can be ended when it hangs."""
    if name in _IN_PROCESS:
        return local(name, bootstrap)
    return Remote(bootstrap, [sys.executable, "-m", "conformance.remote", name, bootstrap], log)


def local(name: str, bootstrap: str) -> Client:
    """A client in this process."""
    client: Client = importlib.import_module(_MODULES[name]).CLIENT(bootstrap)
    return client
