"""Text from outside does nothing to a terminal or a log."""

from __future__ import annotations

import sys

import penstock.text
from penstock_core.text import harmless


def test_what_a_terminal_obeys_is_written_out() -> None:
    assert harmless("a\x1b[2Jb\r\n\x07\x9b\x7f") == "a\\x1b[2Jb\\x0d\\x0a\\x07\\x9b\\x7f"
    assert harmless("\u202eevil\u2066\u200f\u2028\ud800\U000e0001") == (
        "\\u202eevil\\u2066\\u200f\\u2028\\ud800\\U000e0001"
    )


def test_words_of_any_language_stay() -> None:
    for text in ("plain", "Füße 10 €", "日本語", "שלום", "🦀", ""):
        assert harmless(text) is text
    assert harmless("one\ntwo\x1b", keep="\n") == "one\ntwo\\x1b"


def test_the_command_and_the_roles_agree() -> None:
    everything = [chr(code) for code in range(sys.maxunicode + 1)]
    assert [penstock.text.harmless(c) for c in everything] == [harmless(c) for c in everything]
