"""The Storage service of the contract, registered with serializers of its own.

The generated servicer would turn every message into protobuf objects; here the calls that carry
records get and give plain bytes (see `wire`). What is on the wire is the same.
"""

from __future__ import annotations

import grpc
import grpc.aio

from penstock_proto.v1 import data_pb2, storage_pb2
from penstock_storage_node.api.fetch_range import FetchRangeService
from penstock_storage_node.api.forward import ForwardService
from penstock_storage_node.api.positions import PositionsService
from penstock_storage_node.api.replicate import ReplicaStreams

SERVICE = "penstock.v1.Storage"


def add_storage_service(
    server: grpc.aio.Server,
    replicate: ReplicaStreams,
    forward: ForwardService,
    ranges: FetchRangeService,
    positions: PositionsService | None = None,
) -> None:
    """Answer Storage's calls on `server`."""
    handlers = {
        "Replicate": grpc.stream_stream_rpc_method_handler(replicate.replicate),
        "Forward": grpc.stream_stream_rpc_method_handler(forward.forward),
        "FetchRange": grpc.unary_stream_rpc_method_handler(
            ranges.fetch_range, request_deserializer=data_pb2.FetchRangeRequest.FromString
        ),
    }
    if positions is not None:
        handlers["Positions"] = grpc.unary_unary_rpc_method_handler(
            positions.positions,
            request_deserializer=storage_pb2.PositionsRequest.FromString,
            response_serializer=storage_pb2.PositionsResponse.SerializeToString,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
