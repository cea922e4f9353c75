"""Other names for topics, groups and hosts, the same one everywhere in a bundle. Pure.

Names are hashed with a key that nobody keeps: who has the bundle cannot try names out. Addresses of this machine
itself and wildcards stay, since they say nothing of anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

_TOKEN: Final = re.compile(r"[A-Za-z0-9._\-]+")
_PARTITION: Final = re.compile(r"(.+)(-[0-9]+)\Z")
_LOG: Final = re.compile(r"([A-Za-z0-9._\-]+)-[0-9]+(?:\.[0-9a-z.\-]+)?\Z")
_ADDRESS: Final = re.compile(
    r"(?:\A|[@/,\s])(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._\-]*[A-Za-z][A-Za-z0-9._\-]*):[0-9]{1,5}(?![0-9:])"
)
_IP: Final = re.compile(
    r"(?<![0-9.])[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9.])|(?<![0-9A-Fa-f:])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![0-9A-Fa-f:])"
)
_AWAY: Final = re.compile(r"(.+)(-[0-9]+\.[0-9a-z.\-]+)\Z")
"""A log that was set aside, or is deleted."""
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


ADDRESS_FIELDS: Final = frozenset({"address", "peer", "host", "grpc", "http", "raft", "kafka", "direct"})
"""Fields of log lines that are addresses."""


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
        away = _AWAY.match(word)
        if away is not None and away[1] in self._names:
            return self._names[away[1]] + away[2]
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

    def learn_settings(self, value: Any) -> None:
        """Hosts in addresses of settings: `1@ctl-1:5001`, `gateway.example.com:9092`, an IP address."""
        if isinstance(value, dict):
            for each in value.values():
                self.learn_settings(each)
        elif isinstance(value, list):
            for each in value:
                self.learn_settings(each)
        elif isinstance(value, str):
            self._learn_ips(value)
            for match in _ADDRESS.finditer(value):
                self.add("host", match[1].strip("[]"))

    def learn_line(self, line: Any) -> None:
        """Names in fields of a log line, and IP addresses anywhere in it."""
        if not isinstance(line, dict):
            return
        for key, value in line.items():
            if isinstance(value, str):
                self._learn_ips(value)
                if key in ADDRESS_FIELDS:
                    self.add_address(value)
                elif (kind := LABEL_KINDS.get(key)) is not None:
                    self.add(kind, value)
            elif key == "settings":
                self.learn_settings(value)

    def learn_listing(self, text: str) -> None:
        """Topics that only a directory has: their logs are TOPIC-N."""
        for line in text.splitlines():
            for name in line.rpartition("\t")[2].split("/")[:-1]:
                if (match := _LOG.match(name)) is not None and match[1] != "slot":
                    self.add("topic", match[1])

    def _learn_ips(self, text: str) -> None:
        for found in _IP.findall(text):
            try:
                if not ip_address(found).is_loopback and not ip_address(found).is_unspecified:
                    self.add("host", found)
            except ValueError:
                continue  # no address: a version, a time

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
