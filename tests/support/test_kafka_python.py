"""What `support.kafka_python` mends is there, and is mended."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net import manager
from kafka.net.transport import KafkaSSLTransport

from support.kafka_python import dial_tls, mend_dials


def reset_dial() -> socket.socket:
    """Connected, and reset by a listener that ended before it accepted."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dialled = socket.create_connection(listener.getsockname())
    dialled.setblocking(False)
    return dialled


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("dial", "error"),
    # When the first fails, kafka-python has no need of the second any more.
    [(KafkaSSLTransport, ConnectionResetError), (dial_tls, KafkaConnectionError)],
)
def test_a_dial_that_is_reset_before_tls_begins(dial: Any, error: type[Exception]) -> None:
    with reset_dial() as dialled, pytest.raises(error):
        dial(None, dialled, host="localhost", ssl_check_hostname=True)


def test_clients_of_this_process_use_it() -> None:
    mend_dials()
    assert manager.KafkaSSLTransport is dial_tls
