"""Calls by sessions that were resumed after their certificate had ended.

Nobody resumes one with TLS 1.3 here: no tickets are given. OpenSSL remembers sessions of TLS 1.2 by their id all the
same, and whoever resumes one is not asked for his certificate again. So whoever lets calls in asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from penstock_core.security.serial_number import der_of_pem
from penstock_core.security.subject import BadSubject, end_s

RESUMED_AFTER_END = "its certificate has ended, and its session was resumed; renew it"


def is_resumed_after_end(properties: Mapping[str, Any], now_s: float) -> bool:
    """Of a call, by its `auth_context`: whether the caller's certificate has ended, and nobody has looked."""
    if list(properties.get("ssl_session_reused", ())) != [b"true"]:
        return False
    shown = list(properties.get("x509_pem_cert", ()))
    return bool(shown) and _end_s(shown[0]) < now_s


@lru_cache(maxsize=1024)
def _end_s(certificate: bytes) -> float:
    try:
        return end_s(der_of_pem(certificate))
    except BadSubject:
        return 0.0
