"""No module imports, by whatever way round, what imports it; imports for type checkers alone count.

What two modules need of each other is a Protocol of the lower one, or a third file below both.
"""

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

import grimp

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"

KNOWN: dict[frozenset[str], str] = {}
"""Circles that are there, and why."""


def circles(imports: Mapping[str, Iterable[str]]) -> list[frozenset[str]]:
    """Groups of modules each of which leads to every other one."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found = reached[start] = set()
        waiting = [start]
        while waiting:
            for module in imports[waiting.pop()]:
                if module not in found:
                    found.add(module)
                    waiting.append(module)
    groups = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }
    return sorted(groups, key=sorted)


def test_a_circle_is_found_whole() -> None:
    imports = {"a": ["b"], "b": ["c"], "c": ["b", "d"], "d": [], "e": ["e2"], "e2": ["e", "a"]}
    assert circles(imports) == [frozenset("bc"), frozenset({"e", "e2"})]


def test_there_is_no_import_circle_but_the_known_ones() -> None:
    packages = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["root_packages"]
    graph = grimp.build_graph(*packages, cache_dir=None, exclude_type_checking_imports=False)
    found = circles({m: graph.find_modules_directly_imported_by(m) for m in graph.modules})
    new = [sorted(circle) for circle in found if circle not in KNOWN]
    assert not new, f"modules import one another: {new}"
    gone = [sorted(circle) for circle in KNOWN if circle not in found]
    assert not gone, f"these circles are no more, take them off the list: {gone}"
