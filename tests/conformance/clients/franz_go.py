"""franz-go: a small driver of Go (`conformance/go`), built where there are Go and what it depends on."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench.peer import CACHE

from conformance.client import Client
from conformance.remote import Remote

SOURCES = Path(__file__).resolve().parents[1] / "go"
BUILD_TIMEOUT_S = 1_200


class NoGo(Exception):
    """The driver cannot be built on this machine."""


@functools.cache
def built() -> Path:
    """The driver; builds it when its sources are new. Raises NoGo."""
    go = shutil.which("go")
    if go is None:
        raise NoGo("go is not installed: franz-go's driver is built with it")
    files = sorted(file for file in SOURCES.iterdir() if file.suffix in (".go", ".mod", ".sum"))
    digest = hashlib.sha256(b"".join(f.name.encode() + f.read_bytes() for f in files)).hexdigest()[:16]
    driver = CACHE / f"franz-go-{digest}"
    if not driver.exists():
        fetched = _go(go, "mod", "download")
        if fetched.returncode:
            last = (fetched.stdout + fetched.stderr).strip().splitlines()[-1:]
            raise NoGo(f"franz-go cannot be fetched or wants a newer Go: {' '.join(last)[:200]}")
        CACHE.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(dir=CACHE)) / driver.name
        done = _go(go, "build", "-o", str(building), ".")
        assert done.returncode == 0, done.stdout + done.stderr
        building.rename(driver)
        building.parent.rmdir()
    return driver


def _go(go: str, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false"}
    return subprocess.run(
        [go, *words],
        cwd=SOURCES,
        env=environment,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )


def missing() -> str | None:
    """Why it cannot run here."""
    try:
        built()
    except NoGo as reason:
        return str(reason)
    return None


def version() -> str:
    """As go.mod has it."""
    found = re.search(r"/franz-go v(\S+)", (SOURCES / "go.mod").read_text())
    assert found is not None
    return str(found[1])


class FranzGo(Remote):
    name = "franz-go"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap, [str(built()), bootstrap])

    def spawn(self) -> Client:
        return FranzGo(self.bootstrap)


CLIENT = FranzGo
