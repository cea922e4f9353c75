"""No version is pinned that is known to be bad: tools/known_bad.json, which `make lint` compares by `tools/bill.py`."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType

import pytest

from unit.docs.repository import ROOT


@pytest.fixture(scope="module")
def bill() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        spec = importlib.util.spec_from_file_location("penstock_bill_tool", ROOT / "tools" / "bill.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(ROOT / "tools"))


def test_nothing_that_is_pinned_is_known_to_be_bad(bill: ModuleType) -> None:
    known = json.loads((ROOT / "tools" / "known_bad.json").read_text())
    assert [one["package"] for one in known] == sorted(one["package"] for one in known)
    assert bill.bad_versions(bill.packages(), known) == []


@pytest.mark.parametrize(
    ("version", "is_bad"), [("2.9.9", False), ("2.10.0", True), ("2.10.1", False), ("2.10.0rc1", False)]
)
def test_a_version_is_compared_as_pip_would(bill: ModuleType, version: str, is_bad: bool) -> None:
    one = {"package": "pyjwt", "affected": "==2.10.0", "id": "CVE-1", "what": "iss compared by parts"}
    found = bill.bad_versions([bill.Package("pyjwt", version, "MIT", ())], [one])
    assert bool(found) == is_bad
    if is_bad:
        assert found == [
            "pyjwt 2.10.0 (==2.10.0): CVE-1, iss compared by parts; pin another version in constraints.txt"
        ]
