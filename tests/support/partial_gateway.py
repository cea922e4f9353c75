"""A gateway's native API of which a test answers some calls."""

from __future__ import annotations

from typing import Any

import grpc

from penstock_proto.v1 import gateway_pb2_grpc


class PartialGateway(gateway_pb2_grpc.GatewayServicer):
    """Calls that nothing overrides are UNIMPLEMENTED, as at a gateway of an older build."""

    def _unknown(self, request: Any, context: Any) -> Any:
        return context.abort(grpc.StatusCode.UNIMPLEMENTED, "this gateway does not know the call")

    def _unknown_stream(self, request_iterator: Any, context: Any) -> Any:
        return self._unknown(request_iterator, context)

    Authenticate = Produce = _unknown_stream
    Describe = ListOffsets = FetchRange = _unknown
    SizeRanges = EpochEnds = GroupOffsets = CommitGroup = CreateTopic = _unknown
    BeginStage = CommitUnit = AbortStage = DescribeSink = ListSinks = _unknown
