"""Racks as paths of failure domains."""

from __future__ import annotations

import pytest

from penstock_core.racks import check_rack, client_rack, path_of


@pytest.mark.parametrize(
    ("rack", "path", "told"),
    [
        ("", (), ""),
        ("a", ("a",), "a"),
        ("zone-a/host-3", ("zone-a", "host-3"), "zone-a"),
        ("a/b/c", ("a", "b", "c"), "a"),
    ],
)
def test_levels_and_what_clients_are_told(rack: str, path: tuple[str, ...], told: str) -> None:
    assert check_rack(rack) == rack
    assert path_of(rack) == path
    assert client_rack(rack) == told


def test_what_an_older_build_let_in_has_no_further_levels() -> None:
    assert path_of("a/b/c/d") == ("a", "b", "c/d")


@pytest.mark.parametrize("rack", ["a/b/c/d", "/a", "a/", "a//b", "/", " ", "a/ b", "a "])
def test_what_is_no_path_is_refused_with_the_mend(rack: str) -> None:
    with pytest.raises(ValueError, match="write ZONE"):
        check_rack(rack)
