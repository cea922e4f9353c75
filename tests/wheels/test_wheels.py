"""The parts of `make wheels-test`: bounds out of metadata, and lines that README and its pages still have."""

from __future__ import annotations

import ast
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from wheels import imports
from wheels.apart import plain
from wheels.bounds import NoLowerBoundError, Wheel, constraints, lower_bounds, pulled_in, read_wheel
from wheels.lines import FLIGHTS, INSTALLS, ROOT, SAYS, NoSuchLineError, blocks, cluster_steps, spark_steps
from wheels.runs import PACKAGES, Done, Kind, Result, table

METADATA = """\
Metadata-Version: 2.4
Name: penstock_some
Version: 0.1.0
Requires-Dist: penstock-core==0.1.0
Requires-Dist: Click>=8.5
Requires-Dist: grpcio>=1.76
Provides-Extra: oauth
Requires-Dist: pyjwt[crypto]>=2.15; extra == "oauth"
"""


def test_bounds_are_those_of_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "penstock_some-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("penstock_some-0.1.0.dist-info/METADATA", METADATA)
    wheel = read_wheel(path)
    assert (wheel.name, wheel.extras) == ("penstock-some", ("oauth",))
    assert wheel.with_extras("oauth") == f"{path}[oauth]"
    bounds = lower_bounds([*wheel.requires, Requirement("grpcio>=1.85.1,<2")], {"penstock-core"})
    assert constraints(bounds) == "click==8.5\ngrpcio==1.85.1\npyjwt==2.15\n"


def test_the_highest_of_several_bounds_counts_in_any_order() -> None:
    texts = ["pyarrow>=9.0", "pyarrow>=18.0", "pyarrow>=10.0"]
    assert lower_bounds(map(Requirement, texts)) == {"pyarrow": Version("18.0")}


def test_a_requirement_without_a_lower_bound_is_named() -> None:
    with pytest.raises(NoLowerBoundError, match="rich: say since which version"):
        lower_bounds([Requirement("rich")])


def test_what_comes_with_a_wheel_is_found() -> None:
    def wheel(name: str, *requires: str) -> Wheel:
        return Wheel(Path(name), name, tuple(map(Requirement, requires)), ())

    wheels = [
        wheel("penstock-spark", "penstock-core==1", "numpy>=1"),
        wheel("penstock-core", "penstock-proto==1", 'penstock-runtime==1; extra == "all"'),
        *map(wheel, ("penstock-proto", "penstock-runtime", "penstock")),
    ]
    assert pulled_in(wheels, "penstock-spark") == {"penstock-spark", "penstock-core", "penstock-proto"}


def test_each_requirement_of_a_package_has_a_lower_bound() -> None:
    folders = {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("*/pyproject.toml")}
    folders |= {str(path.parent.relative_to(ROOT)) for path in ROOT.glob("[!.]*/*/pyproject.toml")}
    assert folders == set(PACKAGES)
    for package in PACKAGES:
        document = tomllib.loads((ROOT / package / "pyproject.toml").read_text())
        extras = [
            text for group in document["project"].get("optional-dependencies", {}).values() for text in group
        ]
        needed = map(Requirement, [*document["project"]["dependencies"], *extras])
        assert lower_bounds(needed, {"penstock"}) is not None


def test_what_is_run_stands_in_readme_and_its_pages() -> None:
    """A page that is written anew fails here, and not in the long form alone."""
    steps = [*cluster_steps(), *spark_steps()]
    readme = (ROOT / "README.md").read_text()
    assert INSTALLS in readme
    for step in steps:
        if step.page:
            assert step.text.strip() in (ROOT / step.page).read_text()
    assert sum(step.page == "README.md" for step in steps) > 10
    assert sorted(SAYS.keys() - {step.words for step in steps}) == []
    assert any(f"seq {FLIGHTS}" in step.text for step in steps)
    for step in steps:
        if step.python:
            compile(f"{step.before}\n{step.text}\n{step.after}", step.page, "exec")


def test_a_heading_is_none_within_a_block() -> None:
    assert "docker compose" in blocks("README.md", "Try it", "sh")[1]
    with pytest.raises(NoSuchLineError, match="no sh block under 'Nowhere'"):
        blocks("README.md", "Nowhere", "sh")


def test_imports_within_functions_count_and_those_for_types_do_not() -> None:
    text = """
import os.path
from . import sibling
if TYPE_CHECKING:
    from nowhere import Nothing
def draw():
    try:
        from json import dumps, no_such_name
    except ImportError:
        pass
"""
    found = list(imports.imported(ast.parse(text)))
    assert found == [("os.path", ""), ("json", "dumps"), ("json", "no_such_name")]
    assert [bool(imports.problem(*each)) for each in found] == [False, False, True]
    assert imports.problem("nowhere", "").startswith("ModuleNotFoundError")


def test_what_a_terminal_obeys_is_left_out() -> None:
    assert plain(b"\x1b[1mtopic\x1b[0m \x1b[?25lhello\r\n") == "topic hello\n"


def test_a_failure_is_in_the_table_with_what_it_said() -> None:
    (first, *_) = cluster_steps()
    good, bad = Result(Kind("newest", "", "")), Result(Kind("oldest", "", ""), "3.11.7", {"pyspark": "4.2.1"})
    good.done.append(Done(first, 1.0))
    bad.done += [Done(first, 1.0), Done(first, 2.0, "exit code 1", "no such thing")]
    text = table([good, bad])
    assert [line.split()[-1] for line in text.splitlines()[1:3]] == ["pass", "FAILED"]
    assert "oldest: penstock local up (README.md): exit code 1\nno such thing\n" in text
    assert not Result(Kind("nothing", "", "")).is_ok, "what was not run has not passed"
    assert [each["problem"] for each in bad.as_json()["steps"]] == ["", "exit code 1"]
