"""Whether a topic is compacted, by what a gateway gives out of its metadata. A real gRPC server, no Spark."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from dataclasses import replace
from typing import Any

import grpc
import pytest

from penstock_core.metadata import MetadataImage
from penstock_core.metadata.backup import BackupHead, encode
from penstock_core.metadata.levels import level_of
from penstock_proto.v1 import operations_pb2
from pyspark_penstock.jobs.frame import Cluster, JobError
from pyspark_penstock.jobs.policy import is_compacted

IMAGE = MetadataImage(cluster_id=b"c" * 16, version=3)


class Admin:
    """Gives out one image, in small pieces; or refuses."""

    def __init__(self) -> None:
        self.image = IMAGE
        self.refusals: list[grpc.StatusCode] = []

    def export(self, request: Any, context: Any) -> Iterator[Any]:
        assert not request.secrets
        if self.refusals:
            context.abort(self.refusals.pop(0), "ask another\nor later")
        head = BackupHead(self.image.cluster_id.hex(), self.image.version, level_of(self.image), 1, 1, False)
        for part in encode(self.image, head):
            for at in range(0, len(part), 7):
                yield operations_pb2.ExportMetadataResponse(data=part[at : at + 7])


@pytest.fixture
def served() -> Iterator[tuple[Admin, Cluster]]:
    admin = Admin()
    server = grpc.server(futures.ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    method = grpc.unary_stream_rpc_method_handler(
        admin.export,
        operations_pb2.ExportMetadataRequest.FromString,
        operations_pb2.ExportMetadataResponse.SerializeToString,
    )
    handler = grpc.method_handlers_generic_handler("penstock.v1.Admin", {"ExportMetadata": method})
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield admin, Cluster(f"127.0.0.1:{port}")
    assert server.stop(None).wait(30)


@pytest.mark.parametrize(
    ("topic", "cluster", "expected"),
    [
        ({}, {}, False),
        ({"cleanup.policy": "compact"}, {}, True),
        ({"cleanup.policy": "delete,compact"}, {}, True),
        ({"cleanup.policy": "delete"}, {"log.cleanup.policy": "compact"}, False),
        ({}, {"log.cleanup.policy": "compact"}, True),
    ],
)
def test_the_topics_setting_before_the_clusters(
    served: tuple[Admin, Cluster], topic: dict[str, str], cluster: dict[str, str], expected: bool
) -> None:
    admin, where = served
    configs = {
        ("topic", "flights"): topic,
        ("cluster", ""): cluster,
        ("topic", "others"): {"cleanup.policy": "compact"},
    }
    admin.image = replace(IMAGE, configs={key: value for key, value in configs.items() if value})
    admin.refusals = [grpc.StatusCode.UNAVAILABLE]
    assert is_compacted(where, "flights") is expected


def test_who_has_not_the_right_hears_what_to_do(served: tuple[Admin, Cluster]) -> None:
    admin, where = served
    admin.refusals = [grpc.StatusCode.PERMISSION_DENIED]
    with pytest.raises(
        JobError, match=r"PERMISSION_DENIED, ask another\); it takes ALTER .* --compacted yes or no"
    ):
        is_compacted(where, "flights")
