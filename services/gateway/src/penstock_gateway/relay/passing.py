"""An answer that is passed on to its client as it comes, before all of it is here.

Node, gateway and client then work on one answer at the same time, and a gateway whose client reads holds a part of it,
not all. Passed on is what needs nothing done to it: the answer to a whole Fetch (decision 0088). Once its first bytes
are with the client there is no other answer: if the rest does not come, the client's connection ends.

Pure; `client_relay` drives it.
"""

from __future__ import annotations

from typing import Any, Final

from penstock_core.errors import ErrorCode, PenstockError
from penstock_gateway.relay.request import Part, PieceTaker, Relayed
from penstock_proto.fast.forward import InFrame

FIRST_BYTES_MIN: Final = 256
"""A first part smaller than this is kept until all is there: who patches the throttle time needs the head in one."""


class PassedAnswer:
    """One answer under way."""

    __slots__ = ("_left_bytes", "_taker", "request", "until_ms")

    def __init__(self, request: Relayed[Any], taker: PieceTaker, total_bytes: int) -> None:
        self.request = request
        self._taker = taker
        self._left_bytes = total_bytes
        self.until_ms = 0
        """When the node counts as hung."""
        taker.begin(total_bytes)

    def take(self, frame: InFrame, now_ms: int) -> bool:
        """Pass a part on; True: it was the last one. Raises PenstockError when it is not what was announced."""
        size = len(frame.chunk)
        self._left_bytes -= size
        if self._left_bytes < 0 or (frame.last and self._left_bytes) or frame.close_connection:
            raise PenstockError(
                ErrorCode.UNKNOWN_SERVER_ERROR, "an answer is not of the length that its first part announced"
            )
        self.until_ms = now_ms + self.request.answer_ms
        if size:
            self._taker.add(frame.chunk)
        return frame.last


def begin_passing(part: Part, frame: InFrame) -> PassedAnswer | None:
    """What passes on the answer that begins with that frame, None when it has to be here whole first."""
    request = part.request
    if (
        request.pieces is None
        or not part.whole
        or request.finished
        or frame.last
        or not FIRST_BYTES_MIN <= len(frame.chunk) < frame.frame_bytes
    ):
        return None
    return PassedAnswer(request, request.pieces, frame.frame_bytes)
