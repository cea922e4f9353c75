"""The repository's own texts, as the tests of its documents read them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT: Path = Path(__file__).resolve().parents[3]
DOCS: Path = ROOT / "docs"
TESTS: Path = ROOT / "tests"

_FOLDERS = (
    "libs",
    "services",
    "client",
    "spark",
    "proto",
    "tests",
    "tools",
    "bench",
    "demo",
    "deploy",
    "docs",
)
_SUFFIXES = frozenset({".py", ".pyi", ".proto", ".md", ".toml", ".c", ".java", ".yaml"})


def pages() -> list[Path]:
    """Every document: what stands under docs/, and the pages at the top."""
    return sorted(DOCS.rglob("*.md")) + sorted(ROOT.glob("*.md"))


def texts() -> Iterator[tuple[Path, str]]:
    """Every source, test and document with its text."""
    found = [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    for folder in _FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in _SUFFIXES]
    for path in sorted(found):
        if not {"build", "__pycache__", "node_modules", "target"} & set(path.relative_to(ROOT).parts):
            yield path, path.read_text()


def headings(page: Path) -> set[str]:
    """Titles of a page's sections."""
    return set(re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE))


def module_exists(name: str) -> bool:
    """Whether `name` is a module or package that can be imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def has_test(named: str) -> bool:
    """Whether `file` or `file::test`, with `file` under tests/, is there."""
    file, _, test = named.partition("::")
    path = TESTS / file
    return path.is_file() and (not test or f"def {test}(" in path.read_text())
