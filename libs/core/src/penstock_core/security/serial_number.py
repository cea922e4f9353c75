"""Serial numbers of certificates, as the metadata have them: lower-case hex without leading zeros. Pure.

Source: RFC 5280, 4.1.2.2 (a positive integer of at most 20 bytes).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from penstock_core.security.subject import BadSubject, fields_of

_BYTES_MAX: Final = 20
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"
_HEX: Final = re.compile(r"[0-9a-f]+")


class BadSerial(ValueError):
    """Not a serial number; the text says what one looks like."""


def read_serial(text: str) -> str:
    """A serial number as people and tools write it (`0A:1B`, `0x0a1b`). Raises BadSerial."""
    plain = text.strip().lower().removeprefix("0x").replace(":", "").replace(" ", "")
    digits = plain.lstrip("0") or "0"
    if not _HEX.fullmatch(plain) or len(digits) > 2 * _BYTES_MAX:
        raise BadSerial(f"{text[:60]!r} is no serial number; give it in hex, as penstock cert show tells it")
    return digits


def serial_of(certificate: bytes) -> str:
    """That of a certificate in DER. Raises BadSubject."""
    number = int.from_bytes(fields_of(certificate)[0][1], "big")
    return format(number, "x")


def serial_of_pem(certificate: bytes) -> str:
    """That of the first certificate of a PEM text. Raises BadSubject."""
    return serial_of(der_of_pem(certificate))


def der_of_pem(certificate: bytes) -> bytes:
    """The first certificate of a PEM text, in DER. Raises BadSubject."""
    body = certificate.partition(_BEGIN)[2].partition(_END)[0]
    try:
        return base64.b64decode(b"".join(body.split()), validate=True)
    except binascii.Error:
        raise BadSubject("no certificate in PEM") from None
