"""Text of others made harmless: a client's words reach logs and terminals, and must do nothing there."""

from __future__ import annotations


def harmless(text: str, keep: str = "") -> str:
    r"""`text` with what is not to be seen written out: ESC as `\x1b`, a right-to-left override as `\u202e`.

    These are control characters (a terminal obeys some), marks of writing direction (they show other words than
    are there), line separators and lone surrogates; in short what `str.isprintable` says no to. `keep` names
    characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _written_out(c) for c in text)


def _written_out(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
