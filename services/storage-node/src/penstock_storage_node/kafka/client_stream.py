"""The way back to one client: a connection of the node's own listener, or a stream on which a gateway relays one.

What a client has asked and no longer waits for must not be begun when its turn comes: it may have asked again by
another connection, and the late request would decide about what it does now: an EndTxn that a hiccup held back ends the
next transaction of its epoch. So what is held dies with its stream, and where the requests of somebody begin to come by
another stream than before, or by the first that is known here, that stream's client is first asked whether it is still
there (`LateRequests`): a coordinator that has just begun does not know by which one its predecessor was asked last.
What remains is a request whose connection's end is still under way.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from itertools import count
from typing import Final

REMEMBERED_MAX: Final = 100_000
"""Of whom it is known by which stream they came last; who is forgotten is asked once more than need be."""
_NUMBERS = count(1)


class ClientStream:
    """Knows what is held for a client, and gives it up when the client is gone."""

    __slots__ = ("_ask", "_asked", "_held", "_is_there", "_last_ask", "ended", "number")

    def __init__(
        self, is_there: Callable[[], bool] = lambda: True, ask: Callable[[int], None] | None = None
    ) -> None:
        """`is_there`: whether the client is, as far as can be told at once; `ask` sends a question by the stream, of
        which `told` hears if it is."""
        self.number = next(_NUMBERS)
        """Of no other stream of this process."""
        self.ended = False
        """The client is gone."""
        self._is_there = is_there
        self._ask = ask
        self._last_ask = 0
        self._asked: dict[int, Callable[[], None]] = {}
        self._held: dict[Hashable, Callable[[], None]] = {}

    def hold(self, what: Hashable, give_up: Callable[[], None]) -> None:
        """Have `give_up` called when the client goes, unless `what` was let go before; at once if it is gone."""
        if self.ended:
            give_up()
        else:
            self._held[what] = give_up

    def let_go(self, what: Hashable) -> None:
        """It is answered."""
        self._held.pop(what, None)

    def when_there(self, then: Callable[[], None], *, surely: bool) -> None:
        """Call `then` if the client is still there, in the order of such calls; `surely`: ask it, and wait for that."""
        if self.ended or not self._is_there():
            return
        if self._ask is None or not (surely or self._asked):
            then()
            return
        self._last_ask += 1
        self._asked[self._last_ask] = then
        self._ask(self._last_ask)

    def told(self, number: int) -> None:
        """The client is still there, as was asked."""
        then = self._asked.pop(number, None)
        if then is not None and not self.ended:
            then()

    def end(self) -> None:
        """The client is gone."""
        self.ended = True
        self._asked.clear()
        held, self._held = self._held, {}
        for give_up in held.values():
            give_up()


class LateRequests:
    """By which stream the requests of each asker came last."""

    def __init__(self) -> None:
        self._last: OrderedDict[Hashable, int] = OrderedDict()

    def begin(self, asker: Hashable, stream: ClientStream | None, run: Callable[[], None]) -> None:
        """Call `run`, a request of `asker`, unless its client is gone."""
        if stream is None:
            run()
            return
        is_another = self._last.get(asker) != stream.number
        stream.when_there(lambda: self._run(asker, stream, run), surely=is_another)

    def _run(self, asker: Hashable, stream: ClientStream, run: Callable[[], None]) -> None:
        last = self._last
        last[asker] = stream.number
        last.move_to_end(asker)
        if len(last) > REMEMBERED_MAX:
            last.popitem(last=False)
        run()
