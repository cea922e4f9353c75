"""Names in certificates of our own processes."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock_core.security.identity import BadIdentity, PeerIdentity, identity_of, parse_uri


def certificate(*names: tuple[str, str]) -> dict[str, Any]:
    return {"subject": (), "subjectAltName": names}


def test_a_name_is_read_and_written() -> None:
    for text in (
        "spiffe://penstock/controller/1",
        "spiffe://a.b-c_d/storage-node/*",
        "spiffe://x/admin/ops.eu-1",
    ):
        assert str(parse_uri(text)) == text
    assert parse_uri("spiffe://d/gateway/g1") == PeerIdentity("d", "gateway", "g1")


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("", "is no spiffe"),
        ("https://d/controller/1", "is no spiffe"),
        ("SPIFFE://d/controller/1", "is no spiffe"),
        ("spiffe://d/controller", "is not spiffe://DOMAIN/ROLE/NAME"),
        ("spiffe://d/controller/1/2", "is not spiffe://DOMAIN/ROLE/NAME"),
        ("spiffe://d/controller/1/", "is not spiffe://DOMAIN/ROLE/NAME"),
        ("spiffe:///controller/1", "no trust domain"),
        ("spiffe://D/controller/1", "no trust domain"),
        ("spiffe://d:1/controller/1", "no trust domain"),
        ("spiffe://u@d/controller/1", "no trust domain"),
        ("spiffe://d/Controller/1", "unknown role"),
        ("spiffe://d//1", "unknown role"),
        ("spiffe://d/controller/", "no name"),
        ("spiffe://d/controller/..", "no name"),
        ("spiffe://d/controller/1?x", "no name"),
        ("spiffe://d/controller/1#x", "no name"),
        ("spiffe://d/controller/%31", "no name"),
        ("spiffe://d/controller/1*", "no name"),
        ("spiffe://d/controller/1\n", "no name"),
        ("spiffe://d/controller/1\0", "no name"),
        ("spiffe://d/controller/" + "1" * 3000, "characters"),
    ],
)
def test_a_name_that_is_none_is_refused(uri: str, reason: str) -> None:
    with pytest.raises(BadIdentity, match=reason):
        parse_uri(uri)


def test_a_certificate_has_one_name() -> None:
    ours, other = ("URI", "spiffe://d/controller/1"), ("URI", "spiffe://d/controller/2")
    assert identity_of(certificate(("DNS", "controller.d"), ours)).name == "1"
    for names in ((ours, other), (ours, ours), (("URI", "https://d"), ours)):
        with pytest.raises(BadIdentity, match="has 2 URIs"):
            identity_of(certificate(*names))
    for found in (None, {}, certificate(), certificate(("DNS", "spiffe://d/controller/1")), {"subject": ()}):
        with pytest.raises(BadIdentity, match="names no role"):
            identity_of(found)


def test_whatever_is_taken_is_written_as_it_came() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    words = [
        "spiffe://",
        "/",
        "controller",
        "gateway",
        "d",
        "1",
        "*",
        ".",
        "%",
        "?",
        "\0",
        "Ä",
        ":",
        "@",
        "-",
    ]
    for _ in range(20_000):
        text = "spiffe://" * rng.randrange(2) + "".join(rng.choices(words, k=rng.randrange(8)))
        try:
            found = parse_uri(text)
        except BadIdentity:
            continue
        assert str(found) == text
