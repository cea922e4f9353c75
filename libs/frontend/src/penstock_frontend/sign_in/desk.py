"""What all listeners of a process share for signing in: users, limits, threads, counts, the log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final

from penstock_core.metadata.image import MetadataImage
from penstock_core.security.login_limits import LoginLimits
from penstock_core.security.plain import PlainMemo
from penstock_frontend.audit import ListenerAudit, Visitor
from penstock_frontend.listener.connection import Connection
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.credentials import Credentials, SignedIn
from penstock_frontend.sign_in.exchanges import Tokens
from penstock_frontend.sign_in.passwords import PasswordPool
from penstock_runtime.logs import Log
from penstock_runtime.ports import wall_ms

_LOG_INTERVAL_MS: Final = 1_000


def loop_ms() -> int:
    """The running loop's clock, in ms."""
    return int(asyncio.get_running_loop().time() * 1000)


class SignInDesk:
    """One per process: who tries at several listeners is one and the same."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        metrics: KafkaMetrics,
        log: Log,
        now_ms: Callable[[], int] = loop_ms,
        *,
        tokens: Tokens | None = None,
        wall_ms: Callable[[], int] = wall_ms,
        keeps_out: Callable[[], str] = str,
    ) -> None:
        """`tokens` says whether those of OAUTHBEARER count; `keeps_out` why nobody may sign in now."""
        self.keeps_out = keeps_out
        self.credentials = Credentials(image)
        self.signed_in = SignedIn()
        self.limits = LoginLimits()
        self.memo = PlainMemo(os.urandom(32))
        self.passwords = PasswordPool()
        self.now_ms = now_ms
        self.wall_ms = wall_ms
        self.tokens = tokens
        self._metrics = metrics
        self._log = log
        self._said_ms = -_LOG_INTERVAL_MS
        self._unsaid = 0

    def succeeded(self, connection: Connection, mechanism: str, *, again: bool = False) -> None:
        """Count one who has signed in."""
        connection.audit.signed_in(connection, mechanism, again=again)
        self._metrics.sign_ins[connection.listener, mechanism, "success"] += 1

    def failed(self, connection: Connection, mechanism: str, user: str, reason: str) -> None:
        """Count one who has not, and say why; a line a second is enough for that."""
        self._metrics.sign_ins[connection.listener, mechanism, "failure"] += 1
        connection.audit.not_signed_in(connection, mechanism, user, reason)
        self._say(connection.listener, connection.peer, mechanism, user, reason)

    def caller_came(self, audit: ListenerAudit, who: Visitor) -> None:
        """Count one who has signed in at a door beside the listeners."""
        audit.signed_in(who, who.mechanism)
        self._metrics.sign_ins[who.listener, who.mechanism, "success"] += 1

    def caller_refused(self, audit: ListenerAudit, who: Visitor, user: str, reason: str) -> None:
        """Count one who has not, and say why."""
        audit.not_signed_in(who, who.mechanism, user, reason)
        self._metrics.sign_ins[who.listener, who.mechanism, "failure"] += 1
        self._say(who.listener, who.identity.host, who.mechanism, user, reason)

    def _say(self, listener: str, peer: str, mechanism: str, user: str, reason: str) -> None:
        now_ms = self.now_ms()
        if now_ms - self._said_ms < _LOG_INTERVAL_MS:
            self._unsaid += 1
            return
        unsaid, self._unsaid, self._said_ms = self._unsaid, 0, now_ms
        self._log.warning(
            "sign-in failed",
            listener=listener,
            peer=peer,
            mechanism=mechanism,
            user=user,
            reason=reason,
            **({"others": unsaid} if unsaid else {}),
        )
