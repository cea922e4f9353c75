"""Regular expressions of subscriptions: RE2's, in linear time, and like Python's where both have them."""

from __future__ import annotations

import random
import re

import pytest

from penstock_storage_node.groups.consumer.regex import BadRegex, TopicRegex


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders", ["orders"], ["order", "orders1", "xorders"]),
        ("orders.*", ["orders", "orders-eu"], ["my-orders"]),
        ("^(foo|bar)-[0-9]+$", ["foo-1", "bar-22"], ["foo-", "baz-1", "foo-1x"]),
        ("a{2,3}b?", ["aa", "aaab"], ["a", "aaaab"]),
        ("(?i)Foo", ["foo", "FOO"], ["fo"]),
        ("[^a-c]x", ["dx"], ["ax"]),
        ("(?:a|)b*?", ["", "a", "abb"], ["c"]),
        (r"\w+\.\d", ["ab_1.5"], ["ab-1.5"]),
        ("a.c", ["abc"], ["ac"]),
        (r"\bfoo\b.*", ["foo-1"], ["foot"]),
        (r"\pL+[[:digit:]]\z", ["abc1"], ["abc"]),
    ],
)
def test_patterns(pattern: str, yes: list[str], no: list[str]) -> None:
    compiled = TopicRegex(pattern)
    assert all(compiled.matches(text) for text in yes)
    assert not any(compiled.matches(text) for text in no)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        "(?=a)",
        "(?<!a)b",
        "(",
        "a{1000}{1000}",
        "x" * 2000,
        "a++",
        "[a",
        "a{1001}",
        "\ud800",
        "(?:" * 500 + ")" * 500,
    ],
)
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(BadRegex):
        TopicRegex(pattern)


@pytest.mark.timeout(60)
def test_time_is_linear() -> None:
    # Backtracking would take longer than the universe has.
    assert not TopicRegex("(a+)+(a|aa)*(a*)*b").matches("a" * 249)


def test_agreement_with_python_on_random_patterns() -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    pieces = ["a", "b", ".", "[ab]", "[^a]", "(a|b)", "(?:ab|)", "a*", "b+", "(ab)?", "a{1,2}", "^", "$", "|"]
    for _ in range(2_000):
        pattern = "".join(rng.choices(pieces, k=rng.randint(1, 5)))
        compiled, expected = TopicRegex(pattern), re.compile(pattern)
        for _ in range(5):
            text = "".join(rng.choices("abc", k=rng.randint(0, 5)))
            assert compiled.matches(text) == bool(expected.fullmatch(text)), (pattern, text)
