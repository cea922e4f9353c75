"""One partition, read from its leader itself: where that is, a connection to it, and the question that is asked ahead.

Where a rack is told, the leader may name a follower in it (KIP-392). Whatever a follower does but give records, for it
may be behind, makes the route go back to the leader and stay there.

Nothing is decided here about what is lost, or when to give up. A node that cannot be dialled is NoDirectWay, one that
went away NodeLost; the leader is asked for again behind either, and behind every error that a node tells.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from penstock_core.security.client_file import ClientFileError
from penstock_core.security.sasl import SaslFailure
from pyspark_penstock.direct import connection as connections
from pyspark_penstock.direct.connection import Connection
from pyspark_penstock.direct.frames import FetchAnswer, MalformedFrame, fetch_request, read_fetch
from pyspark_penstock.direct.nodes import REACHABILITY, Leader, NodeListener, Reachability
from pyspark_penstock.errors import GatewayError
from pyspark_penstock.tiling import OffsetRange

ATTEMPT_S: Final = 1.0
"""For all of a connection, where gateways are the other way."""
CONNECT_S: Final = 10.0
"""Where there is none."""
SILENCE_S: Final = 30.0
"""A node that says nothing for so long, beyond what it was asked to wait, is lost (Kafka: request.timeout.ms)."""
LOOK_S: Final = 5.0
"""After so much silence Describe is asked whether another leads by now."""
ANSWERS_GROW: Final = 4
"""So many times what is asked for first is asked for later, where so much is left: each question costs a way to the
node and back, of which a busy machine makes milliseconds. Nodes answer 4 MiB at most."""
_LEAST_BYTES: Final = 16 << 10
WAIT_MS: Final = 500
"""How long a node may wait for records."""


class NoDirectWay(Exception):
    """The leader cannot be asked directly. `may_pass`: a later attempt may fare better; `was_reached`: an earlier
    one from this process did."""

    def __init__(self, reason: str, *, may_pass: bool = True, was_reached: bool = False) -> None:
        super().__init__(reason)
        self.may_pass = may_pass
        self.was_reached = was_reached


class NodeLost(Exception):
    """A node that was connected is gone, silent, or speaks nonsense."""


class DirectRoute:
    """Asks the leader of one partition. Used up by one reader."""

    def __init__(
        self,
        wanted: OffsetRange,
        leader: Leader | None,
        find_leader: Callable[[], Leader | None],
        *,
        must: bool,
        credentials_file: str = "",
        read_committed: bool = False,
        silence_s: float = SILENCE_S,
        max_bytes: int = 1 << 20,
        rack: str = "",
        find_node: Callable[[int], Leader | None] = lambda node_id: None,
        reachability: Reachability = REACHABILITY,
    ) -> None:
        """`leader` is what the plan knows, and may be old. `must`: there is no other way, so that what was out of
        reach is tried again and again. `find_node` is asked for followers in `rack`."""
        self._wanted = wanted
        self._leader = leader
        self._find_leader = find_leader
        self.must = must
        self._credentials_file = credentials_file
        self._read_committed = read_committed
        self._max_bytes = self._ask_bytes = max_bytes
        self._silence_s = silence_s
        self._rack = rack
        self._find_node = find_node
        self._near: Leader | None = None
        """The follower that is asked instead of the leader."""
        self._reachability = reachability
        self._connection: Connection | None = None
        self._asked: tuple[int, int] | None = None
        """Number and offset of the question whose answer has not come."""
        self._throttled_s = 0.0
        self.failures = 0
        """Since an answer last had records."""

    @property
    def address(self) -> str:
        """Of the node that is asked now."""
        connection = self._connection
        return (
            "the leader" if connection is None else NodeListener(connection.host, connection.port, "").address
        )

    @property
    def leader_epoch(self) -> int:
        """That was named with the question, so that the node has no other; -1 when no leader is known."""
        return -1 if self._leader is None else self._leader.epoch

    def answer(self, offset: int) -> FetchAnswer:
        """The node's answer about what is at `offset`; good until the next. Raises NoDirectWay, NodeLost."""
        while True:
            is_near = self._near is not None
            try:
                found = self._exchange(offset)
            except (NoDirectWay, NodeLost):
                if not is_near:
                    raise
                self._go_back()
                continue
            if is_near and (found.error or not len(found.records)):
                self._go_back()
            elif self._rack and not is_near and not found.error and found.nearer_node >= 0:
                self._go_near(found.nearer_node)
            else:
                return found

    def _exchange(self, offset: int) -> FetchAnswer:
        if self._asked is not None and self._asked[1] != offset:
            self.drop()
        if self._connection is not None and self._connection.is_due and self._asked is None:
            self.drop()
        if self._connection is None:
            self._connection = self._connect()
        try:
            if self._asked is None:
                self._ask(self._connection, offset)
            assert self._asked is not None
            number, _ = self._asked
            self._await_news(self._connection)
            frame = self._connection.answer(self._silence_s)
            self._asked = None
            found = read_fetch(frame, number, self._wanted.topic_id, self._wanted.partition)
        except (OSError, MalformedFrame) as error:
            what = "the answer is broken: " if isinstance(error, MalformedFrame) else ""
            reason = f"{self.address}: {what}{_text(error)}"
            self.drop()
            if self._near is None:
                self.forget_leader()
            raise NodeLost(reason) from None
        self._throttled_s = max(found.throttle_ms, 0) / 1000
        return found

    def _await_news(self, connection: Connection) -> None:
        """Raises TimeoutError when none comes, or from another node."""
        left_s = self._silence_s + WAIT_MS / 1000 + self._throttled_s
        while not connection.has_news(min(left_s, LOOK_S)):
            left_s -= LOOK_S
            if left_s <= 0 or self._is_deposed():
                raise TimeoutError

    def _is_deposed(self) -> bool:
        """Whether to leave a silent node: another leads by now, or it is a follower."""
        if self._near is not None:
            return True
        try:
            leader = self._find_leader()
        except GatewayError:
            return False
        return leader is not None and leader != self._leader

    def ahead(self, offset: int, came_bytes: int, came_offsets: int) -> None:
        """Ask what comes next, while what came is being decoded: so many bytes for so many offsets."""
        left_bytes = came_bytes * (self._wanted.end - offset) // max(came_offsets, 1)
        # A little more than is left: a range that ends just behind an answer takes another one.
        enough_bytes = max(left_bytes + left_bytes // 16, _LEAST_BYTES)
        self._ask_bytes = min(enough_bytes, self._max_bytes * ANSWERS_GROW)
        connection = self._connection
        if connection is None or connection.is_due:
            return
        # What is wrong with the connection shows when the answer is wanted.
        with suppress(OSError):
            self._ask(connection, offset)

    def _ask(self, connection: Connection, offset: int) -> None:
        assert self._leader is not None
        number = connection.next_number()
        self._asked = number, offset
        request = fetch_request(
            number,
            self._wanted.topic_id,
            self._wanted.partition,
            self._leader.epoch,
            offset,
            max_bytes=self._ask_bytes,
            max_wait_ms=WAIT_MS,
            read_committed=self._read_committed,
            rack=self._rack,
        )
        connection.ask(request, self._silence_s)

    def _go_near(self, node_id: int) -> None:
        self.leave()
        with suppress(GatewayError):
            self._near = self._find_node(node_id)
        if self._near is None:
            self._go_back()

    def _go_back(self) -> None:
        self.leave()
        self._near, self._rack = None, ""

    # -- the node ---------------------------------------------------------------------------

    def forget_leader(self) -> None:
        """Another may lead by now: Describe is asked before the next question."""
        self._leader = None
        self.leave()

    def drop(self) -> None:
        """Close what is open."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._asked = None

    def leave(self) -> None:
        """The reader is done; the next one may have the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connections.kept(connection, self._credentials_file)
        self._asked = None

    def _connect(self) -> Connection:
        if self._near is not None:
            return self._dial(self._near)
        planned = self._leader
        if planned is not None:
            try:
                return self._dial(planned)
            except NoDirectWay as error:
                if not error.may_pass:
                    raise
        # What a plan knew is old: it is no reason to give up.
        leader = self._find()
        if leader == planned and not self.must:
            raise NoDirectWay(f"storage node {leader.node_id}, the leader, is out of reach")
        self._leader = leader
        return self._dial(leader)

    def _find(self) -> Leader:
        try:
            leader = self._find_leader()
        except GatewayError as error:
            raise NoDirectWay(str(error), was_reached=True) from None
        if leader is None:
            raise NoDirectWay("no leader is there now", was_reached=True)
        return leader

    def _dial(self, leader: Leader) -> Connection:
        listener = self._listener(leader)
        host, port = listener.host, listener.port
        was_reached = self._reachability.was_reached(host, port)
        has_another = self._near is not None or not self.must
        lately = "" if not has_another else self._reachability.avoided(host, port)
        if lately:
            raise NoDirectWay(lately, was_reached=was_reached)
        try:
            kept = connections.taken(host, port, self._credentials_file)
            if kept is not None:
                return kept
            account = connections.account(self._credentials_file)
            made = Connection(host, port, account, ATTEMPT_S if has_another else CONNECT_S)
        except (OSError, MalformedFrame) as error:
            reason = f"storage node {leader.node_id} is out of reach at {listener.address}: {_text(error)}"
            self._reachability.failed(host, port, reason)
            if self._near is None:
                self.forget_leader()
            raise NoDirectWay(reason, was_reached=was_reached) from None
        except (SaslFailure, ClientFileError) as error:
            reason = f"storage node {leader.node_id} at {listener.address} refuses credentialsFile: {error}"
            self._reachability.failed(host, port, reason)
            raise NoDirectWay(reason, may_pass=False) from None
        self._reachability.reached(host, port)
        return made

    def _listener(self, leader: Leader) -> NodeListener:
        try:
            account = connections.account(self._credentials_file)
        except ClientFileError as error:
            raise NoDirectWay(str(error), may_pass=False) from None
        security = "PLAINTEXT" if account is None else account.file.security_protocol
        for listener in leader.listeners:
            if listener.security == security:
                return listener
        raise NoDirectWay(
            f"no Kafka listener of storage node {leader.node_id} with security {security} is known: give nodes and "
            "gateways a listener of mode direct, or leave fetchMode out",
            may_pass=False,
        )


def _text(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    text = getattr(error, "strerror", None) or str(error)
    return str(text).splitlines()[0] if text else type(error).__name__
