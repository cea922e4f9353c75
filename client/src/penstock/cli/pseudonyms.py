"""Other names for topics, groups and hosts, the same one everywhere in a bundle. Pure.

Names are hashed with a key that nobody keeps: who has the bundle cannot try names out. Addresses of this machine
itself and wildcards stay, since they say nothing of anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Any, Final

_TOKEN: Final = re.compile(r"[A-Za-z0-9._\-]+")
_PARTITION: Final = re.compile(r"(.+)(-[0-9]+)\Z")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._\-]+\Z")
_LABEL: Final = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
KEPT: Final = frozenset({"", "*", "localhost", "127.0.0.1", "::1", "host-gateway"})
LABEL_KINDS: Final[Mapping[str, str]] = {
    "topic": "topic",
    "group": "group",
    "group_id": "group",
    "host": "host",
    "address": "host",
}
"""Labels of metrics whose whole value is a name, and of what kind."""


class Pseudonyms:
    """Of one bundle."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._names: dict[str, str] = {}
        self._odd: list[str] = []
        """Names that are no single word, the longest first."""

    def add(self, kind: str, name: str) -> None:
        """From now on `name` is called otherwise: `kind` and a hash."""
        if name in KEPT or name in self._names or name.startswith("__"):
            return
        digest = hmac.new(self._key, name.encode(), hashlib.sha256).hexdigest()[:12]
        self._names[name] = f"{kind}-{digest}"
        if not _PLAIN.match(name):
            self._odd.append(name)
            self._odd.sort(key=len, reverse=True)

    def add_address(self, address: str) -> None:
        """The host of HOST:PORT."""
        host, _, port = address.rpartition(":")
        self.add("host", (host if port.isdecimal() else address).strip("[]"))

    def text(self, text: str) -> str:
        """The text with every name that is known put by another; TOPIC-N keeps its N."""
        if text in self._names:
            return self._names[text]
        for name in self._odd:
            if name in text:
                text = text.replace(name, self._names[name])
        return _TOKEN.sub(self._word, text)

    def _word(self, match: re.Match[str]) -> str:
        word = match[0]
        stem = word.rstrip(".")
        if found := self._names.get(word) or self._names.get(stem):
            return found + word[len(stem) :] if word not in self._names else found
        partition = _PARTITION.match(stem)
        if partition is not None and partition[1] in self._names:
            return self._names[partition[1]] + partition[2] + word[len(stem) :]
        return word

    def document(self, value: Any) -> Any:
        """A JSON document with the text in it replaced; keys and numbers stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.document(each) for each in value]
        if isinstance(value, dict):
            return {key: self.document(each) for key, each in value.items()}
        return value

    def learn_metrics(self, text: str) -> None:
        """Names that stand in labels alone: groups are nowhere else."""
        for label, value in _LABEL.findall(text):
            kind = LABEL_KINDS.get(label)
            if label == "address":
                self.add_address(_unescaped(value))
            elif kind is not None:
                self.add(kind, _unescaped(value))

    def metrics(self, text: str) -> str:
        """A page of metrics with the values of labels replaced."""

        def replaced(match: re.Match[str]) -> str:
            value = self.text(_unescaped(match[2]))
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            return f'{match[1]}="{escaped}"'

        return _LABEL.sub(replaced, text)


def _unescaped(value: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value)


__all__ = ["Pseudonyms"]
