"""The subject of a certificate, as Kafka writes it: `CN=alice,OU=data,O=Example`.

RFC 2253 in the form of Java's X500Principal.getName, which is what `ssl.principal.mapping.rules` were written for:
the last name in the certificate comes first, attributes that RFC 2253 does not name are `OID=#hex` of their
encoding, and `, = + < > # ; " \\`, a space at either end and NUL are escaped. Read from the DER, for
what the ssl module gives has lost the encodings. Pure.
Sources: X.509 (RFC 5280, 4.1), X.690; OpenJDK's AVA.toRFC2253String.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OID: Final = 0x06
_INTEGER: Final = 0x02
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_CHARSETS: Final = {
    0x0C: "utf-8",
    0x13: "utf-8",  # PrintableString
    0x14: "utf-8",  # T61String: as Java reads it
    0x16: "utf-8",  # IA5String
    0x1B: "utf-8",  # GeneralString
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_ESCAPED: Final = frozenset(',=+<>#;"\\')


class BadSubject(ValueError):
    """A certificate that cannot be read."""


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER; "" when it has none. Raises BadSubject."""
    try:
        return ",".join(reversed([_rdn(each) for each in _rdns(certificate)]))
    except BadSubject:
        raise
    except (IndexError, ValueError):
        raise BadSubject("the certificate's subject cannot be read") from None


def end_s(certificate: bytes) -> float:
    """When a certificate in DER ends, in s since 1970. Raises BadSubject."""
    try:
        _, (tag, value, _) = _elements(fields_of(certificate)[3][1])
        text = value.decode("ascii")
        if tag == _UTC_TIME:  # two digits of the year (RFC 5280, 4.1.2.5.1)
            text = ("19" if int(text[:2]) >= 50 else "20") + text
        return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
    except BadSubject:
        raise
    except (IndexError, ValueError):
        raise BadSubject("the certificate's end cannot be read") from None


def fields_of(certificate: bytes) -> list[tuple[int, bytes, bytes]]:
    """Tag, content and whole of serial number, signature, issuer, validity, subject and what follows.

    Raises BadSubject.
    """
    try:
        parts = _elements(_content(_content(certificate, _SEQUENCE), _SEQUENCE))
        fields = [part for part in parts if part[0] != _VERSION]
    except (IndexError, ValueError):
        raise BadSubject("the certificate cannot be read") from None
    if len(fields) < 5 or fields[0][0] != _INTEGER or fields[4][0] != _SEQUENCE:
        raise BadSubject("no certificate")
    return fields


def _rdns(certificate: bytes) -> Iterator[bytes]:
    fields = fields_of(certificate)
    for tag, content, _ in _elements(fields[4][1]):
        if tag != _SET:
            raise BadSubject("a subject of another form")
        yield content


def _rdn(content: bytes) -> str:
    return "+".join(_attribute(each) for _, each, _ in _elements(content))


def _attribute(content: bytes) -> str:
    (oid_tag, oid, _), (tag, value, whole) = list(_elements(content))[:2]
    if oid_tag != _OID:
        raise BadSubject("an attribute without a type")
    name = _oid(oid)
    keyword, charset = _KEYWORDS.get(name), _CHARSETS.get(tag)
    if keyword is None or charset is None:
        return f"{keyword or name}=#{whole.hex()}"
    return f"{keyword}={_escape(value.decode(charset))}"


def _escape(text: str) -> str:
    kept = len(text.rstrip(" \r"))
    lead = len(text) - len(text.lstrip(" \r"))
    out = []
    for i, c in enumerate(text):
        if c == "\0":
            out.append("\\00")
        elif c in _ESCAPED or i < lead or i >= kept:
            out.append("\\" + c)
        else:
            out.append(c)
    return "".join(out)


def _oid(data: bytes) -> str:
    numbers, number = [], 0
    for byte in data:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, [first, numbers[0] - 40 * first, *numbers[1:]]))


def _content(data: bytes, tag: int) -> bytes:
    found = next(_elements(data), None)
    if found is None or found[0] != tag:
        raise BadSubject("no certificate")
    return found[1]


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Tag, content and the whole of each element."""
    at = 0
    while at < len(data):
        begin, tag, length = at, data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            if not 0 < size <= 4:
                raise BadSubject("a length of another form")
            length = int.from_bytes(data[at : at + size])
            at += size
        if at + length > len(data):
            raise BadSubject("an element that ends too soon")
        yield tag, data[at : at + length], data[begin : at + length]
        at += length
