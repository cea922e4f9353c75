"""A fault of kafka-python 3.0.12 that would be blamed on Penstock, mended for the tests.

A dial to a process that is killed before it accepts is reset. Over TLS the reset comes out of `ssl.wrap_socket`, in the
constructor of the client's transport, as the bare `ConnectionResetError`; the client's metadata loop ends for good
on whatever is no `KafkaError` (its pull request 2936 speaks of it). From then on it asks leaders of the past for
ever, with any broker. `test_kafka_python.py` shows the fault, and fails
when a later version has none.
"""

from __future__ import annotations

from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net import manager, transport


def dial_tls(*words: Any, **named: Any) -> Any:
    """A transport; a dial that was reset fails as every other failed dial does.

    Raises:
        KafkaConnectionError: it was reset.
    """
    try:
        return transport.KafkaSSLTransport(*words, **named)
    except ConnectionError as error:
        raise KafkaConnectionError(f"Handshake failed: {error}") from error


def mend_dials() -> None:
    """All clients of this process use it from now on."""
    manager.KafkaSSLTransport = dial_tls
