"""This gateway's standing with the controllers: registered, with a session.

Registering names the gateway's listeners to every other gateway; the session keeps it
named. When the session breaks it is opened again, also to another controller; when the
controller no longer knows the epoch the gateway registers anew. Clients are served
meanwhile: registration only decides who else is told of this gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_frontend.listener.quota_gate import QuotaGate
from penstock_proto.v1 import controller_pb2 as pb
from penstock_runtime.controller_client import ControllerClient, ControllerStream
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.metadata_client import MetadataClient

_RETRY_S: Final = 0.2
_CALL_TIMEOUT_MS: Final = 5_000

Session = ControllerStream[pb.GatewayHeartbeat, pb.GatewayHeartbeatReply]


class Registration:
    """Keeps this gateway registered until told to leave."""

    def __init__(
        self,
        request: Callable[[], pb.RegisterGatewayRequest],
        controllers: ControllerClient,
        metadata: MetadataClient,
        lifecycle: Lifecycle,
        quotas: QuotaGate | None = None,
    ) -> None:
        """Heartbeats carry what this gateway wants of `quotas`, and their answers what it gets."""
        self._quotas = quotas or QuotaGate.idle()
        self._request = request
        self._controllers = controllers
        self._metadata = metadata
        self._lifecycle = lifecycle
        self._epoch = -1
        self._interval_s = 0.25
        self._timeout_s = 2.0
        self._leaving = asyncio.Event()
        self._left = asyncio.Event()
        self.registered = asyncio.Event()
        """Set once the registration has come back in the metadata."""

    async def run(self) -> None:
        """Register and hold the session, for ever; returns when the gateway has left."""
        while not self._left.is_set():
            try:
                if self._epoch < 0:
                    await self._register()
                await self._hold()
            except PenstockError as e:
                if e.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
                    self._lifecycle.fatal(e.message)
                    return
                self._lifecycle.log.info("gateway session ended", reason=e.message)
                if self._leaving.is_set():
                    return
                await asyncio.sleep(_RETRY_S)

    async def leave(self, timeout_ms: int) -> None:
        """Ask to be named no more, and wait for it, but no longer than `timeout_ms`."""
        self._leaving.set()
        if self._epoch >= 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._left.wait()

    async def _register(self) -> None:
        request = self._request()
        response: pb.RegisterGatewayResponse = await self._controllers.call(
            "RegisterGateway", request, _CALL_TIMEOUT_MS
        )
        if response.error.code:
            raise PenstockError(_code(response.error.code), response.error.message)
        self._controllers.note_term(response.controller_term)
        self._epoch = response.gateway_epoch
        self._interval_s = max(response.heartbeat_interval_ms, 10) / 1000
        self._timeout_s = max(response.session_timeout_ms, 100) / 1000
        self._lifecycle.log.info("registered", epoch=self._epoch)
        if await self._metadata.wait_for_version(response.version, _CALL_TIMEOUT_MS):
            self.registered.set()

    async def _hold(self) -> None:
        stream: Session = await self._controllers.session("GatewaySession", _CALL_TIMEOUT_MS)
        reader = asyncio.create_task(self._listen(stream), name="gateway session replies")
        try:
            while not reader.done():
                await stream.write(
                    pb.GatewayHeartbeat(
                        gateway_id=self._request().gateway_id,
                        gateway_epoch=self._epoch,
                        metadata_version=self._metadata.image.version,
                        want_shutdown=self._leaving.is_set(),
                        quota_report=self._quotas.report(),
                    )
                )
                await asyncio.wait({reader}, timeout=self._interval_s)
            await reader
        finally:
            stream.close()
            reader.cancel()
            await asyncio.wait({reader})
            if not reader.cancelled():
                reader.exception()  # either raised above, or beside the failure that is

    async def _listen(self, stream: Session) -> None:
        """Read replies; returns when the gateway may go."""
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    reply = await stream.read()
            except TimeoutError:
                raise PenstockError(
                    ErrorCode.REQUEST_TIMED_OUT, f"controller {stream.address} is silent"
                ) from None
            if not self._controllers.note_term(reply.controller_term):
                raise PenstockError(
                    ErrorCode.STALE_CONTROLLER_EPOCH,
                    f"controller {stream.address} of term {reply.controller_term}, "
                    f"heard of {self._controllers.heard_term}",
                )
            if reply.error.code:
                # Whatever it is, a new registration mends it.
                self._epoch = -1
                raise PenstockError(_code(reply.error.code), reply.error.message)
            if reply.HasField("quota_shares"):
                self._quotas.take_shares(reply.quota_shares)
            if reply.may_shutdown and self._leaving.is_set():
                self._left.set()
                return


def _code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
