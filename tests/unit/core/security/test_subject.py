"""The subject of a certificate as Java writes it, which is what mapping rules are made for."""

from __future__ import annotations

import contextlib
import datetime
import random

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from penstock_core.security.subject import BadSubject, end_s, subject_of

KEY = ec.generate_private_key(ec.SECP256R1())


def certificate(
    *rdns: list[x509.NameAttribute[str]] | x509.NameAttribute[str], end: datetime.datetime | None = None
) -> bytes:
    """A certificate with that subject, as DER; an hour long, or until `end`."""
    name = x509.Name([x509.RelativeDistinguishedName(r if isinstance(r, list) else [r]) for r in rdns])
    end = end or datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "issuer")]))
        .public_key(KEY.public_key())
        .serial_number(2**100)
        .not_valid_before(end - datetime.timedelta(hours=1))
        .not_valid_after(end)
    )
    return builder.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


def attribute(
    oid: x509.ObjectIdentifier, value: str, kind: _ASN1Type | None = None
) -> x509.NameAttribute[str]:
    return x509.NameAttribute(oid, value, kind)


def test_the_last_name_comes_first() -> None:
    der = certificate(
        attribute(NameOID.COUNTRY_NAME, "DE"),
        attribute(NameOID.ORGANIZATION_NAME, "Example"),
        attribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "data"),
        attribute(NameOID.COMMON_NAME, "alice"),
    )
    assert subject_of(der) == "CN=alice,OU=data,O=Example,C=DE"


def test_names_that_rfc_2253_does_not_know_are_numbers_and_hex() -> None:
    der = certificate(attribute(NameOID.COMMON_NAME, "a"), attribute(NameOID.EMAIL_ADDRESS, "a@b"))
    assert subject_of(der) == "1.2.840.113549.1.9.1=#1603614062,CN=a"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("Smith, John", "Smith\\, John"),
        (' a"b\\c ', '\\ a\\"b\\\\c\\ '),
        ("#1", "\\#1"),
        ("a=b+c", "a\\=b\\+c"),
        ("Łódź", "Łódź"),
        ("a\0b", "a\\00b"),
    ],
)
def test_what_would_be_read_as_something_else_is_escaped(value: str, written: str) -> None:
    assert subject_of(certificate(attribute(NameOID.COMMON_NAME, value))) == f"CN={written}"


def test_every_kind_of_text_is_read() -> None:
    for kind in (_ASN1Type.BMPString, _ASN1Type.PrintableString, _ASN1Type.UTF8String):
        assert subject_of(certificate(attribute(NameOID.COMMON_NAME, "alice", kind))) == "CN=alice"


def test_one_name_of_two_parts_and_none_at_all() -> None:
    both = [attribute(NameOID.COMMON_NAME, "a"), attribute(NameOID.USER_ID, "b")]
    assert set(subject_of(certificate(both)).split("+")) == {"CN=a", "UID=b"}
    assert subject_of(certificate()) == ""


@pytest.mark.parametrize("year", [1999, 2049, 2050, 3000])
def test_when_a_certificate_ends(year: int) -> None:
    end = datetime.datetime(year, 12, 31, 23, 59, 58, tzinfo=datetime.UTC)
    assert end_s(certificate(end=end)) == end.timestamp()


def test_no_bytes_end_in_anything_but_a_subject_or_bad_subject() -> None:
    seed = random.randrange(2**32)
    rng = random.Random(seed)
    good = certificate(attribute(NameOID.COMMON_NAME, "alice"))
    for _ in range(3_000):
        bad = bytearray(good[: rng.randint(0, len(good))] if rng.random() < 0.3 else good)
        for _ in range(rng.randint(0, 4)):
            if bad:
                bad[rng.randrange(min(len(bad), 120))] = rng.randrange(256)
        try:
            for read in (subject_of, end_s):
                with contextlib.suppress(BadSubject):
                    read(bytes(bad))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {bad.hex()}") from error
