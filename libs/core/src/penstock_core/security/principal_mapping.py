"""Rules that make a user's name of a certificate's subject: Kafka's `ssl.principal.mapping.rules`.

    RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L, DEFAULT

Rules stand between commas; the first whose pattern matches the whole subject counts, `DEFAULT` takes the
subject as it is, and a subject that no rule matches is refused. As in Kafka the replacement is put for every
match in the subject (Java: String.replaceAll), `$n` is a group, a backslash makes the next character plain, L
and U change case. Where Kafka would fail only when somebody connects, a wrong rule is refused at once.
Source: Kafka's SslPrincipalMapper. Patterns are compiled by RE2: a subject is foreign text, and Python's own
matcher backtracks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

PATTERN_LENGTH_MAX: Final = 1_024
SUBJECT_LENGTH_MAX: Final = 8_192
MEMORY_BYTES_MAX: Final = 1 << 20
"""Of one compiled pattern; RE2 refuses what needs more."""

_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)", re.DOTALL)
_END: Final = re.compile(r"\s*(?:,|$)")


class BadRule(ValueError):
    """A rule that cannot be used: names it, and the mend."""


class NoRuleMatches(Exception):
    """A subject that no rule makes a name of: whoever has the certificate is refused."""


class _Match(Protocol):
    def start(self) -> int: ...
    def end(self) -> int: ...
    def group(self, group: int, /) -> str | None: ...


class _Pattern(Protocol):
    @property
    def groups(self) -> int: ...
    def fullmatch(self, text: str) -> _Match | None: ...
    def search(self, text: str, pos: int) -> _Match | None: ...


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: _Pattern
    replacement: tuple[str | int, ...]
    """Plain text and numbers of groups."""
    case: str

    def apply(self, subject: str) -> str | None:
        if self.pattern.fullmatch(subject) is None:
            return None
        name = "".join(self._replaced(subject))
        if self.case == "L":
            return name.lower()
        return name.upper() if self.case == "U" else name

    def _replaced(self, subject: str) -> Iterator[str]:
        """Every match, as Java finds them: after an empty one the search goes on one character later."""
        at = done = 0
        while at <= len(subject) and (match := self.pattern.search(subject, at)) is not None:
            yield subject[done : match.start()]
            for part in self.replacement:
                yield part if isinstance(part, str) else match.group(part) or ""
            done = match.end()
            at = done + 1 if match.end() == match.start() else done
        yield subject[done:]


class PrincipalMapping:
    """Rules, read once. Raises BadRule."""

    def __init__(self, rules: str = "DEFAULT") -> None:
        self._rules = tuple(_parse(rules.strip()))
        if not self._rules:
            raise BadRule("there is no rule: write DEFAULT to take subjects as they are")

    def name(self, subject: str) -> str:
        """The name of whoever has a certificate with that subject (RFC 2253). Raises NoRuleMatches."""
        if len(subject) > SUBJECT_LENGTH_MAX:
            raise NoRuleMatches(f"a subject of {len(subject)} characters, the most is {SUBJECT_LENGTH_MAX}")
        for rule in self._rules:
            name = subject if rule is None else rule.apply(subject)
            if name:
                return name
            if name is not None:
                raise NoRuleMatches(f"a rule makes an empty name of {subject!r}")
        raise NoRuleMatches(f"no rule matches {subject!r}")


def _parse(rules: str) -> Iterator[_Rule | None]:
    """Each rule; None is DEFAULT. Empty ones between commas are passed over, as in Kafka."""
    at = 0
    while at < len(rules):
        if rules[at].isspace() or rules[at] == ",":
            at += 1
            continue
        text = rules[at:].split(",", 1)[0].strip()
        if rules.startswith("DEFAULT", at):
            end, rule = at + len("DEFAULT"), None
        elif (read := _RULE.match(rules, at)) is not None:
            end, text = read.end(), read[0]
            rule = _compile(text, read[1], read[2], read[3])
        else:
            raise BadRule(f"Invalid rule: {text!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        after = _END.match(rules, end)
        if after is None:
            rest = rules[end:].split(",", 1)[0].strip()
            raise BadRule(f"Invalid rule: {text!r}, then {rest!r}: a comma ends a rule")
        at = after.end()
        yield rule


def _compile(rule: str, pattern: str, replacement: str, case: str) -> _Rule:
    compiled = _re2(rule, pattern)
    return _Rule(compiled, tuple(_parts(rule, replacement, compiled.groups)), case)


def _re2(rule: str, pattern: str) -> _Pattern:
    # Loaded by those who have rules, and by nobody else.
    import re2

    if len(pattern) > PATTERN_LENGTH_MAX:
        raise BadRule(f"{rule[:40]!r}...: {len(pattern)} characters, the most is {PATTERN_LENGTH_MAX}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MEMORY_BYTES_MAX
    try:
        compiled: _Pattern = re2.compile(pattern, options)
    except UnicodeEncodeError:
        raise BadRule(f"{rule!r}: characters that UTF-8 does not have") from None
    except re2.error as error:
        why = error.args[0] if error.args else error
        why = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise BadRule(f"{rule!r}: {why}") from None
    return compiled


def _parts(rule: str, replacement: str, groups: int) -> Iterator[str | int]:
    """Java's replacement (Matcher.appendReplacement); a group that is not there is plain text, as in Kafka."""
    at = 0
    while at < len(replacement):
        one = replacement[at]
        if one == "\\":
            yield replacement[at + 1]
            at += 2
        elif one != "$":
            yield one
            at += 1
        else:
            digits = re.compile("[0-9]+").match(replacement, at + 1)
            if digits is None:
                raise BadRule(f"{rule!r}: after $ comes the number of a group; write \\$ for the sign itself")
            number, end = _group(digits[0], groups)
            if number and not groups:
                raise BadRule(f"{rule!r}: ${number} is a group, and the pattern has none in parentheses")
            yield number if number <= groups else f"${number}"
            at += 1 + end


def _group(digits: str, groups: int) -> tuple[int, int]:
    """As many digits as name a group that there is, at least one; how many."""
    number, end = int(digits[0]), 1
    while end < len(digits) and number * 10 + int(digits[end]) <= groups:
        number, end = number * 10 + int(digits[end]), end + 1
    return number, end
