"""Whether a topic is compacted: an audit can't tell a hole that compaction made from one that was not to be.

The native API tells a topic's partitions and not its settings; they are in the metadata that a gateway gives out whole
(`ExportMetadata`, which asks for ALTER on the cluster). Who has not that right says it himself.
"""

from __future__ import annotations

from typing import Any

import grpc

from penstock_core.config.topic import TopicConfig
from penstock_core.metadata.backup import BadBackup, decode
from penstock_proto.v1 import admin_pb2_grpc, operations_pb2
from pyspark_penstock.errors import GatewayError
from pyspark_penstock.gateway import RETRIABLE_STATUS, Access, Backoff, channel
from pyspark_penstock.jobs.frame import Cluster, JobError

_TIMEOUT_S = 60.0
_ROUNDS_MAX = 5
_CLEANUP = "cleanup.policy"
_NODE_DEFAULT = "log.cleanup.policy"


def is_compacted(cluster: Cluster, topic: str) -> bool:
    """By the topic's setting, else by the cluster's. Raises PenstockError."""
    addresses = cluster.options(topic).gateways
    access, backoff, reason = Access(cluster.credentials_file), Backoff(100), ""
    for _ in range(_ROUNDS_MAX):
        for address in addresses:
            try:
                return _in_image(_export(access, address, cluster.credentials_file), topic)
            except grpc.RpcError as error:
                reason = (
                    f"{address}: {error.code().name}, {(error.details() or 'no details').splitlines()[0]}"
                )
                if error.code() not in RETRIABLE_STATUS and not access.may_ask_again(error.code()):
                    raise JobError(
                        f"whether topic {topic!r} is compacted could not be asked ({reason}); it takes ALTER on the "
                        "cluster, or say it: --compacted yes or no"
                    ) from None
            except BadBackup as error:
                raise JobError(f"{address}: {error}") from None
        backoff.wait()
    raise GatewayError(f"whether topic {topic!r} is compacted could not be asked: {reason}")


def _export(access: Access, address: str, credentials_file: str) -> bytes:
    _, metadata = access.open(address)
    admin = admin_pb2_grpc.AdminStub(channel(address, credentials_file))
    request = operations_pb2.ExportMetadataRequest()
    pieces: Any = admin.ExportMetadata(request, timeout=_TIMEOUT_S, metadata=metadata)
    return b"".join(piece.data for piece in pieces)


def _in_image(data: bytes, topic: str) -> bool:
    image = decode(data, "the gateway's metadata").image
    own = image.config("topic", topic).get(_CLEANUP)
    if own is None:
        own = image.config("cluster", "").get(_NODE_DEFAULT)
    return TopicConfig.from_config({} if own is None else {_CLEANUP: own}, 1).is_compacted
