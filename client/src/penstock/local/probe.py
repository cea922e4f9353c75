"""Is it ready? Small synchronous probes over plain sockets: HTTP readiness and three Kafka calls.

Theory: `up` may return when a record can be produced. That asks of the cluster that its
controllers commit (InitProducerId is a write to their log, and leaves nothing behind but
a number), that the gateway reaches them, and that it sees every node alive (Metadata lists
no fenced node). No topic is made for it. Written by hand, not with a Kafka client, because
a client library costs more time to start than the probe takes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.connector import PLAINTEXT, Connector, Refused, call

ANSWER_BYTES_MAX = 1 << 20
CLUSTER_AUTHORIZATION_FAILED = 31


@dataclass(frozen=True)
class Readiness:
    """`ready`, and when not, the reason that the process gave (or that there was no answer)."""

    ready: bool
    answered: bool
    reason: str


def http_ready(host: str, port: int, timeout_s: float = 0.5, connector: Connector = PLAINTEXT) -> Readiness:
    """GET /readyz."""
    request = f"GET /readyz HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n"
    try:
        with connector.open(host, port, timeout_s) as connection:
            connection.sendall(request.encode())
            answer = b""
            while len(answer) < ANSWER_BYTES_MAX and (part := connection.recv(65_536)):
                answer += part
    except OSError as error:
        return Readiness(False, False, f"no answer at {host}:{port} ({error.strerror or error})")
    head, _, body = answer.partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    return Readiness(status == [b"200"], bool(status), body.decode("utf-8", "replace").strip())


def kafka_ready(
    host: str,
    port: int,
    nodes_expected: int,
    timeout_s: float = 2.0,
    connector: Connector = PLAINTEXT,
) -> Readiness:
    """Whether the gateway there shows `nodes_expected` live nodes and the quorum commits.

    A gateway that decides by ACLs has them from the controllers when it refuses: more is not asked of it.
    """
    try:
        with connector.open(host, port, timeout_s) as connection:
            connector.sign_in(connection)
            nodes = _metadata_node_count(call(connection, 3, 4, struct.pack(">i?", 0, False)))
            if nodes < nodes_expected:
                return Readiness(False, True, f"{nodes} of {nodes_expected} storage nodes are registered")
            answer = call(connection, 22, 0, struct.pack(">hi", -1, 60_000))
            error = struct.unpack_from(">h", answer, 4)[0]
            if error not in (0, CLUSTER_AUTHORIZATION_FAILED):
                return Readiness(False, True, f"the controllers give no producer id (Kafka error {error})")
    except Refused as error:
        return Readiness(False, True, f"the gateway at {host}:{port} does not take the admin ({error})")
    except (OSError, struct.error, ValueError) as error:
        return Readiness(False, False, f"the gateway at {host}:{port} does not answer Kafka calls ({error})")
    return Readiness(True, True, "")


def _metadata_node_count(answer: bytes) -> int:
    """Brokers in a Metadata v4 response: after the throttle time, an array of them."""
    return int(struct.unpack_from(">i", answer, 4)[0])
