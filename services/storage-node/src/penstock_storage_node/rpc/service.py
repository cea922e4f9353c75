"""The Storage service of the contract, registered with serializers of its own.

The generated servicer would turn every message into protobuf objects; here the calls that carry
records get and give plain bytes (see `wire`). What is on the wire is the same.
"""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from penstock_proto.v1 import data_pb2, operations_pb2, sinks_pb2, storage_pb2
from penstock_runtime.self_description import SelfDescription
from penstock_storage_node.rpc.fetch_range import FetchRangeService
from penstock_storage_node.rpc.forward import ForwardService
from penstock_storage_node.rpc.log_ends import LogEndsService
from penstock_storage_node.rpc.replicate_leader import LeaderStreams
from penstock_storage_node.rpc.size_ranges import SizeRangesService
from penstock_storage_node.rpc.strays import StraysService
from penstock_storage_node.rpc.transaction_service import TransactionService
from penstock_storage_node.rpc.units import UnitsService

SERVICE = "penstock.v1.Storage"


def add_storage_service(
    server: grpc.aio.Server,
    replicate: LeaderStreams,
    forward: ForwardService,
    ranges: FetchRangeService,
    positions: LogEndsService | None = None,
    strays: StraysService | None = None,
    itself: SelfDescription | None = None,
    transactions: TransactionService | None = None,
    units: UnitsService | None = None,
    sizes: SizeRangesService | None = None,
) -> None:
    """Answer Storage's calls on `server`."""
    handlers = {
        "Replicate": grpc.stream_stream_rpc_method_handler(replicate.replicate),
        "Forward": grpc.stream_stream_rpc_method_handler(forward.forward),
        "FetchRange": grpc.unary_stream_rpc_method_handler(
            ranges.fetch_range, request_deserializer=data_pb2.FetchRangeRequest.FromString
        ),
    }
    if transactions is not None:
        handlers["Transactions"] = grpc.stream_stream_rpc_method_handler(transactions.transactions)
    if positions is not None:
        handlers["Positions"] = grpc.unary_unary_rpc_method_handler(
            positions.positions,
            request_deserializer=storage_pb2.PositionsRequest.FromString,
            response_serializer=storage_pb2.PositionsResponse.SerializeToString,
        )
    if sizes is not None:
        handlers["SizeRanges"] = grpc.unary_unary_rpc_method_handler(
            sizes.size_ranges,
            request_deserializer=storage_pb2.NodeSizeRangesRequest.FromString,
            response_serializer=storage_pb2.NodeSizeRangesResponse.SerializeToString,
        )
    if strays is not None:
        handlers["DescribeStrays"] = grpc.unary_unary_rpc_method_handler(
            strays.describe,
            request_deserializer=operations_pb2.DescribeStraysRequest.FromString,
            response_serializer=operations_pb2.DescribeStraysResponse.SerializeToString,
        )
        handlers["DeleteStray"] = grpc.unary_unary_rpc_method_handler(
            strays.delete,
            request_deserializer=operations_pb2.DeleteStrayRequest.FromString,
            response_serializer=operations_pb2.DeleteStrayResponse.SerializeToString,
        )
    if itself is not None:
        handlers["DescribeProcess"] = grpc.unary_stream_rpc_method_handler(
            itself.describe,
            request_deserializer=operations_pb2.DescribeProcessRequest.FromString,
            response_serializer=operations_pb2.DescribeProcessResponse.SerializeToString,
        )
    if units is not None:
        handlers |= _unit_handlers(units)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


def _unit_handlers(units: UnitsService) -> dict[str, Any]:
    return {
        name: grpc.unary_unary_rpc_method_handler(
            behaviour,
            request_deserializer=getattr(sinks_pb2, f"{name}Request").FromString,
            response_serializer=getattr(sinks_pb2, f"{name}Response").SerializeToString,
        )
        for name, behaviour in (
            ("BeginStage", units.begin_stage),
            ("CommitUnit", units.commit_unit),
            ("AbortStage", units.abort_stage),
            ("DescribeSink", units.describe_sink),
            ("ListSinks", units.list_sinks),
        )
    }
