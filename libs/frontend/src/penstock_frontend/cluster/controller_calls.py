"""Calls to the active controller on behalf of clients, and waiting for what they changed.

The answer waits until this process has applied the change, or the client's own timeout has
passed, whichever is first: done is done, a slow stream of metadata makes no failure of it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_runtime.controller_client import ControllerClient
from penstock_runtime.metadata_client import MetadataClient

TIMEOUT_MIN_MS: Final = 1_000
TIMEOUT_MAX_MS: Final = 60_000
TIMEOUT_DEFAULT_MS: Final = 15_000
"""For requests that name no timeout."""


class ControllerCalls:
    """What admin requests share."""

    def __init__(self, metadata: MetadataClient, controllers: ControllerClient) -> None:
        self.metadata = metadata
        self.controllers = controllers

    async def call(
        self, method: str, request: Any, timeout: timedelta | int = TIMEOUT_DEFAULT_MS, *, wait: bool = True
    ) -> Any:
        """The controller's reply; with `wait` once the change is applied here.

        `timeout` in ms or as kio gives it; what a healthy cluster does at once is done even if
        the client gives it 0. Raises PenstockError for an error of the whole call.
        """
        wanted_ms = timeout if isinstance(timeout, int) else int(timeout.total_seconds() * 1000)
        timeout_ms = min(max(wanted_ms, TIMEOUT_MIN_MS), TIMEOUT_MAX_MS)
        clock_ms = self.controllers.clock_ms
        deadline_ms = clock_ms() + timeout_ms
        response = await self.controllers.call(method, request, timeout_ms)
        if response.error.code:
            raise PenstockError(error_code(response.error.code), response.error.message)
        if wait and response.version:
            await self.metadata.wait_for_version(response.version, deadline_ms - clock_ms())
        return response


def error_code(code: int) -> ErrorCode:
    """A code that a controller sent; UNKNOWN_SERVER_ERROR for one of a newer version."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
