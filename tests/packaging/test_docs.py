"""What the documents name is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"


def test_tests_that_durability_names_exist() -> None:
    text = (DOCS / "durability.md").read_text()
    named = re.findall(r"`([a-z_/]+/test_[a-z_]+\.py)(?:::(test_\w+))?`", text)
    assert len(named) > 5
    for file, test in named:
        source = (TESTS / file).read_text()
        assert not test or f"def {test}(" in source, f"{file}::{test}"


def test_scenarios_that_durability_names_exist() -> None:
    text = (DOCS / "durability.md").read_text()
    named = {
        name
        for some in re.findall(r"chaos ((?:`[a-z0-9-]+`(?:, )?)+)", text)
        for name in re.findall(r"`([a-z0-9-]+)`", some)
    }
    assert len(named) > 10
    # As `make chaos` runs it.
    run = subprocess.run(
        [sys.executable, "-m", "chaos", "--list"],
        cwd=TESTS.parent,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=True,
    )
    missing = named - {line.split()[0] for line in run.stdout.splitlines() if line.strip()}
    assert not missing, missing


def test_links_between_documents_lead_somewhere() -> None:
    links = 0
    for page in (*DOCS.rglob("*.md"), TESTS.parent / "README.md", TESTS.parent / "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
            links += 1
    assert links > 0
