"""The docstring of each package of libs and services names what is in the package, and nothing else."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from unit.docs.repository import ROOT

UNFINISHED: tuple[str, ...] = ()
"""Packages (and all in them) whose docstrings still lack modules. To be emptied, not to grow."""


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "penstock_docstrings_tool", ROOT / "tools/package_docstrings.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tool = load_tool()
PACKAGES: dict[str, Path] = tool.packages()


def is_unfinished(name: str) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in UNFINISHED)


@pytest.mark.parametrize("name", sorted(name for name in PACKAGES if not is_unfinished(name)))
def test_a_package_says_what_is_in_it(name: str) -> None:
    missing, gone = tool.differences(PACKAGES[name])
    hint = f"run tools/package_docstrings.py --write {name}, then edit what it wrote"
    assert missing == [], f"not in the docstring; {hint}"
    assert gone == [], f"in the docstring, not in the package; {hint}"


def test_what_is_left_unfinished_really_is() -> None:
    for one in UNFINISHED:
        below = [init for name, init in PACKAGES.items() if name == one or name.startswith(f"{one}.")]
        assert any(any(tool.differences(init)) for init in below), (
            f"{one} is complete: take it out of UNFINISHED"
        )


def test_a_docstring_is_brought_up_to_date_and_keeps_what_people_wrote(tmp_path: Path) -> None:
    package = tmp_path / "libs" / "some" / "src" / "some"
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "__init__.py").write_text('"""The inner part: more of it."""\n')
    (package / "frames.py").write_text('"""Headers of requests, and of responses. More."""\n')
    (package / "codec.py").write_text('"""Kafka messages.\n\nMuch more.\n"""\n')
    (package / "__main__.py").write_text("")
    init = package / "__init__.py"
    init.write_text(
        '"""Some package.\n\n`codec`  written by people,\n         on two lines\n`old`    is gone\n\n'
        'Rules: `codec` first.\n"""\n\nX = 1\n'
    )
    (found,) = [i for n, i in tool.packages(tmp_path).items() if n == "some"]
    assert tool.differences(found) == (["frames", "inner"], ["old"])
    tool.write(found)
    assert tool.differences(found) == ([], [])
    assert init.read_text() == (
        '"""Some package.\n\n'
        "`codec`   written by people, on two lines\n"
        "`frames`  headers of requests, and of responses\n"
        "`inner`   the inner part: more of it\n\n"
        'Rules: `codec` first.\n"""\n\nX = 1\n'
    )
    tool.write(found)
    assert tool.differences(found) == ([], [])
