"""The normal form of passwords (SASLprep, RFC 4013), and which passwords are safe to set.

RFC 5802 wants passwords prepared before they are hashed. Kafka's own client, librdkafka, kafka-python and aiokafka
hash what was typed (Kafka: ScramFormatter.normalize). A password for which the two differ works with some clients
and not with others, so our tools refuse to set one; nothing that signs in is changed on the way.
"""

from __future__ import annotations

import stringprep
import unicodedata
from collections.abc import Callable
from typing import Final

_PROHIBITED: Final[tuple[Callable[[str], bool], ...]] = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class BadText(ValueError):
    """The text has characters that SASLprep does not allow; says which."""


def saslprep(text: str) -> str:
    """The prepared form, as a stored string: code points that Unicode 3.2 does not have are refused.

    Raises BadText.
    """
    if text.isascii() and text.isprintable():
        return text
    mapped = "".join(
        " " if stringprep.in_table_c12(one) else one for one in text if not stringprep.in_table_b1(one)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    for one in prepared:
        if any(prohibits(one) for prohibits in _PROHIBITED):
            raise BadText(f"U+{ord(one):04X} is not allowed")
        if stringprep.in_table_a1(one):
            raise BadText(f"U+{ord(one):04X} is younger than Unicode 3.2")
    _check_directions(prepared)
    return prepared


def _check_directions(text: str) -> None:
    """RFC 3454, 6: text written from right to left is so from its first to its last character."""
    if not any(stringprep.in_table_d1(one) for one in text):
        return
    if any(stringprep.in_table_d2(one) for one in text):
        raise BadText("characters of both directions")
    if not (stringprep.in_table_d1(text[0]) and stringprep.in_table_d1(text[-1])):
        raise BadText("text from right to left must begin and end so")


def check_new_password(password: str) -> None:
    """Raise ValueError, which does not show the password, unless every client makes the same key of it."""
    if not password:
        raise ValueError("the password is empty")
    try:
        prepared = saslprep(password)
    except BadText as error:
        raise ValueError(f"the password cannot be used: {error}; use letters, digits and signs") from None
    if prepared != password:
        raise ValueError(
            "some clients normalize this password (SASLprep) and others do not, so that it would not work "
            "with all of them: use another one, best of ASCII characters"
        )
