"""Regular expressions of subscriptions, with RE2's promise: time linear in the text.

Kafka takes RE2 patterns, matched against whole topic names. Python's own matcher backtracks, and a
member could hang the coordinator with `(a+)+b`. So the pattern is parsed by Python, turned into a
nondeterministic automaton of at most STATES_MAX states, and run by sets of states. What RE2 lacks
(backreferences, looking around, possessive groups) is refused, as RE2 does; of RE2's own syntax,
what Python's parser does not know (`\\pL`, `\\z`, `[[:alpha:]]`) is refused too.
"""

from __future__ import annotations

import re
import warnings
from functools import lru_cache
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as sre_parser  # type: ignore[attr-defined]
from typing import Any, Final

PATTERN_LENGTH_MAX: Final = 1_024
STATES_MAX: Final = 2_000
_CHARS_KEPT: Final = 128


class BadRegex(ValueError):
    """The pattern cannot be used; says why."""


class TopicRegex:
    """A compiled pattern."""

    def __init__(self, pattern: str) -> None:
        """Raises BadRegex."""
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise BadRegex(f"{len(pattern)} characters, the most is {PATTERN_LENGTH_MAX}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                parsed = sre_parser.parse(pattern)
        except (re.error, ValueError, OverflowError, RecursionError, Warning) as e:
            raise BadRegex(str(e)) from None
        if parsed.state.flags & ~(re.IGNORECASE | re.UNICODE | re.DOTALL | re.MULTILINE | re.VERBOSE):
            raise BadRegex("a flag that is not known")
        self._ignore_case = bool(parsed.state.flags & re.IGNORECASE)
        self._steps: list[list[tuple[Any, int]]] = []
        """By state: (test, next state); test None is a step that reads nothing."""
        self._sets: dict[int, Any] = {}
        """Tests of sets by identity: one that is repeated is one, for all states."""
        try:
            start = self._state()
            self._end = self._sequence(parsed, start)
        except RecursionError:
            raise BadRegex("nested too deeply") from None
        self._sets.clear()  # identities are of what was parsed, which goes
        self._start = self._closure({start}, at_start=True, at_end=False)

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` matches."""
        if self._ignore_case:
            text = text.lower()
        current = self._closure(self._start, at_start=True, at_end=not text)
        for index, char in enumerate(text):
            following = {
                state
                for each in current
                for test, state in self._steps[each]
                if callable(test) and test(char)
            }
            if not following:
                return False
            current = self._closure(following, at_start=False, at_end=index == len(text) - 1)
        return self._end in current

    # -- building -------------------------------------------------------------------------

    def _state(self) -> int:
        if len(self._steps) >= STATES_MAX:
            raise BadRegex(f"it needs more than {STATES_MAX} states: repeat less")
        self._steps.append([])
        return len(self._steps) - 1

    def _sequence(self, items: Any, start: int) -> int:
        for op, value in items:
            start = self._item(op, value, start)
        return start

    def _item(self, op: Any, value: Any, start: int) -> int:
        if op in (sre.LITERAL, sre.NOT_LITERAL, sre.IN, sre.ANY):
            end = self._state()
            self._steps[start].append((self._test(op, value), end))
            return end
        if op is sre.BRANCH:
            end = self._state()
            for branch in value[1]:
                first = self._state()
                self._steps[start].append((None, first))
                self._steps[self._sequence(branch, first)].append((None, end))
            return end
        if op is sre.SUBPATTERN:
            if value[1] or value[2]:
                raise BadRegex("flags inside a group")
            return self._sequence(value[3], start)
        if op in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, item = value
            return self._repeat(least, most, item, start)
        if op is sre.AT and value in (
            sre.AT_BEGINNING,
            sre.AT_BEGINNING_STRING,
            sre.AT_END,
            sre.AT_END_STRING,
        ):
            end = self._state()
            is_start = value in (sre.AT_BEGINNING, sre.AT_BEGINNING_STRING)
            self._steps[start].append(("start" if is_start else "end", end))
            return end
        raise BadRegex(f"{str(op).lower()} is not supported")

    def _repeat(self, least: int, most: int, item: Any, start: int) -> int:
        for _ in range(least):
            states = len(self._steps)
            start = self._sequence(item, start)
            if len(self._steps) == states:
                break  # `(){1000000000}`: what reads nothing reads nothing however often
        end = self._state()
        if most == sre.MAXREPEAT:
            first = self._state()
            self._steps[start].append((None, first))
            self._steps[self._sequence(item, first)].append((None, first))
            self._steps[first].append((None, end))
            return end
        for _ in range(most - least):
            states = len(self._steps)
            self._steps[start].append((None, end))
            start = self._sequence(item, start)
            if len(self._steps) == states:
                break
        self._steps[start].append((None, end))
        return end

    def _test(self, op: Any, value: Any) -> Any:
        if op is sre.ANY:
            return lambda char: char != "\n"
        if op in (sre.LITERAL, sre.NOT_LITERAL):
            wanted = self._fold(chr(value))
            return (lambda char: char == wanted) if op is sre.LITERAL else (lambda char: char != wanted)
        known = self._sets.get(id(value))
        if known is None:
            tests = [self._set_item(*item) for item in value if item[0] is not sre.NEGATE]
            negate = any(item[0] is sre.NEGATE for item in value)
            # A set may have hundreds of items, and each state asks it again of the same few characters.
            known = lru_cache(_CHARS_KEPT)(lambda char: any(test(char) for test in tests) != negate)
            self._sets[id(value)] = known
        return known

    def _fold(self, text: str) -> str:
        return text.lower() if self._ignore_case else text

    def _set_item(self, op: Any, value: Any) -> Any:
        if op is sre.LITERAL:
            wanted = self._fold(chr(value))
            return lambda char: char == wanted
        if op is sre.RANGE:
            low, high = value
            if self._ignore_case:
                return lambda char: low <= ord(char) <= high or low <= ord(char.upper()[0]) <= high
            return lambda char: low <= ord(char) <= high
        if op is sre.CATEGORY and value in _CATEGORIES:
            return _CATEGORIES[value]
        raise BadRegex(f"{str(value).lower()} is not supported in a set")

    def _closure(self, states: set[int], *, at_start: bool, at_end: bool) -> set[int]:
        """Everything that can be reached without reading."""
        reached = set(states)
        work = list(states)
        while work:
            for test, state in self._steps[work.pop()]:
                open_ = test is None or (test == "start" and at_start) or (test == "end" and at_end)
                if open_ and state not in reached:
                    reached.add(state)
                    work.append(state)
        return reached


def _is_word(char: str) -> bool:
    return char == "_" or (char.isascii() and char.isalnum())


_CATEGORIES: Final = {
    sre.CATEGORY_DIGIT: lambda char: char.isascii() and char.isdigit(),
    sre.CATEGORY_NOT_DIGIT: lambda char: not (char.isascii() and char.isdigit()),
    sre.CATEGORY_WORD: _is_word,
    sre.CATEGORY_NOT_WORD: lambda char: not _is_word(char),
    sre.CATEGORY_SPACE: lambda char: char in " \t\n\r\f\v",
    sre.CATEGORY_NOT_SPACE: lambda char: char not in " \t\n\r\f\v",
}
