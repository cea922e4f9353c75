"""kcat: a command for each call. It has no admin calls, and a group member is one command."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from conformance.client import Client, ClientError, Place, Position, Record, Unsupported

COMMAND_TIMEOUT_S = 40.0
_CONSUMER_SETTINGS = {
    "fetch_bytes_min": "fetch.min.bytes",
    "fetch_wait_ms": "fetch.wait.max.ms",
    "fetch_bytes_max": "fetch.max.bytes",
    "partition_bytes_max": "max.partition.fetch.bytes",
    "session_timeout_ms": "session.timeout.ms",
    "heartbeat_ms": "heartbeat.interval.ms",
    "strategy": "partition.assignment.strategy",
    "instance_id": "group.instance.id",
    "auto_commit": "enable.auto.commit",
    "reset": "auto.offset.reset",
    "auto_create": "allow.auto.create.topics",
}
_PRODUCER_SETTINGS = {
    "acks": "acks",
    "compression": "compression.type",
    "idempotence": "enable.idempotence",
    "request_bytes_max": "message.max.bytes",
    "timeout_ms": "message.timeout.ms",
    "linger_ms": "linger.ms",
}
_SEPARATOR = "\x1e"
_TIMESTAMPS = {"create": "create", "logappend": "append"}


class Kcat(Client):
    name = "kcat"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._settings: dict[str, dict[str, Any]] = {}
        self._places: dict[str, list[Position]] = {}
        self._topics: dict[str, list[str]] = {}

    def _kcat(self, *words: str, data: bytes = b"") -> bytes:
        try:
            done = subprocess.run(
                ["kcat", "-b", self.bootstrap, *words],
                input=data,
                capture_output=True,
                timeout=COMMAND_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClientError("LOCAL_TIMEOUT", f"kcat {' '.join(words)}") from error
        if done.returncode != 0:
            raise ClientError(
                _reason(done.stderr.decode(errors="replace")), done.stderr.decode(errors="replace")
            )
        return done.stdout

    # -- producing -----------------------------------------------------------------------

    def produce(
        self, topic: str, records: Sequence[Record], settings: dict[str, Any] | None = None
    ) -> list[Any]:
        wanted = {"timeout_ms": 20_000, **(settings or {})}
        options = [f"-X{_PRODUCER_SETTINGS[name]}={_word(value)}" for name, value in wanted.items()]
        answers: list[Any] = [{}] * len(records)
        for indices in _alike(records):
            first = records[indices[0]]
            words = ["-P", "-t", topic, *options]
            if "partition" in first:
                words += ["-p", str(first["partition"])]
            if "timestamp_ms" in first:
                raise Unsupported("cannot set timestamps")
            for name, value in first.get("headers") or ():
                if value is None or not name or not (name + value).isascii():
                    raise Unsupported("cannot send such headers")
                words += ["-H", f"{name}={value}"]
            values = [records[i] for i in indices]
            if any(_SEPARATOR in (r["value"] or "") or r["value"] is None for r in values):
                raise Unsupported("cannot send null values")
            keyed = first.get("key") is not None
            if keyed:
                words += ["-K", "\x1f"]
            lines = [(f"{r['key']}\x1f" if keyed else "") + r["value"] for r in values]
            if any(line == "" for line in lines):
                raise Unsupported("cannot send empty values")
            with tempfile.TemporaryDirectory(prefix="kcat-") as folder:
                file = Path(folder) / "records"
                file.write_bytes(_SEPARATOR.join(lines).encode("latin-1"))
                try:
                    self._kcat(*words, "-D", _SEPARATOR, "-l", str(file))
                    answer = {"partition": first.get("partition"), "offset": None}
                except ClientError as error:
                    answer = {"error": error.name}
            for index in indices:
                answers[index] = answer
        return answers

    # -- consuming -----------------------------------------------------------------------

    def open_consumer(self, name: str, settings: dict[str, Any] | None = None) -> None:
        wanted = dict(settings or {})
        if wanted.get("protocol", "classic") != "classic":
            raise Unsupported("(librdkafka 2.0.2) has no group.protocol=consumer")
        self._settings[name] = {"auto_commit": False, **wanted}

    def close_consumer(self, name: str) -> None:
        del self._settings[name]
        self._places.pop(name, None)
        self._topics.pop(name, None)

    def subscribe(self, name: str, topics: Sequence[str]) -> None:
        if "group" not in self._settings[name]:
            raise Unsupported("subscribes in a group only")
        self._topics[name] = list(topics)

    def assign(self, name: str, positions: Sequence[Position]) -> None:
        if any(offset is None for _, _, offset in positions):
            raise Unsupported("cannot begin at committed offsets without a subscription")
        self._places[name] = list(positions)

    def poll(self, name: str, count: int, timeout_ms: int) -> list[Record]:
        settings = self._settings[name]
        options = [
            f"-X{_CONSUMER_SETTINGS[key]}={_word(value)}"
            for key, value in settings.items()
            if key in _CONSUMER_SETTINGS
        ]
        if count == 0:
            raise Unsupported("does nothing between records")
        if name in self._topics:
            topics = self._topics[name]
            words = ["-G", settings["group"], *topics]
            return self._read(words, options, count, timeout_ms)
        found: list[Record] = []
        for topic, partition, offset in self._places[name]:
            words = ["-C", "-t", topic, "-p", str(partition), "-o", str(offset)]
            if len(self._places[name]) > 1:
                words += ["-e"]  # to the end; else it waits for each in turn
            some = self._read(words, options, count - len(found), timeout_ms)
            found += some
            if some:
                place = self._places[name].index([topic, partition, offset])
                self._places[name][place] = [topic, partition, some[-1]["offset"] + 1]
            if len(found) >= count:
                break
        return found

    def _read(self, words: list[str], options: list[str], count: int, timeout_ms: int) -> list[Record]:
        # What there is before the time is over: kcat ends at a count, or is stopped.
        command = ["timeout", "-s", "INT", f"{timeout_ms / 1000}", "kcat", "-b", self.bootstrap]
        shape = _SEPARATOR.join(("%t", "%p", "%o", "%K", "%k", "%S", "%s", "%h", "%T")) + "\x1d"
        group = words[0] == "-G"
        form = ["-f", shape, "-u", "-q", "-c", str(count)]
        order = [*options, *form, *words] if group else [*words, *options, *form]
        done = subprocess.run(
            [*command, *order],
            capture_output=True,
            timeout=timeout_ms / 1000 + COMMAND_TIMEOUT_S,
            check=False,
        )
        errors = done.stderr.decode(errors="replace")
        if done.returncode not in (0, 124) and not done.stdout:
            raise ClientError(_reason(errors), errors)
        return [_record(part) for part in done.stdout.decode("latin-1").split("\x1d") if part]

    def offsets_for_times(self, name: str, times: Sequence[Position]) -> list[Position]:
        found: list[Position] = []
        for topic, partition, at in times:
            text = self._kcat("-Q", "-t", f"{topic}:{partition}:{at}").decode()
            offset = int(text.rpartition("offset ")[2].split()[0])
            found.append([topic, partition, offset if offset >= 0 else None])
        return found

    def watermarks(self, name: str, topic: str, partition: int) -> list[int]:
        places = [(topic, partition, -2), (topic, partition, -1)]
        texts = [self._kcat("-Q", "-t", f"{t}:{p}:{at}").decode() for t, p, at in places]
        low, high = (int(text.rpartition("offset ")[2].split()[0]) for text in texts)
        return [low, high]

    # -- admin ---------------------------------------------------------------------------

    def _metadata(self, *words: str) -> Any:
        return json.loads(self._kcat("-L", "-J", *words))

    def list_topics(self) -> list[str]:
        return sorted(topic["topic"] for topic in self._metadata()["topics"])

    def describe_topics(self, names: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in names:
            topic = self._metadata("-t", name)["topics"][0]
            if "error" in topic:
                found[name] = topic["error"]
                continue
            found[name] = {
                "partitions": [
                    {
                        "partition": p["partition"],
                        "leader": p["leader"] if p["leader"] >= 0 else None,
                        "replicas": [one["id"] for one in p["replicas"]],
                        "isr": sorted(one["id"] for one in p["isrs"]),
                    }
                    for p in topic["partitions"]
                ]
            }
        return found

    def describe_cluster(self) -> dict[str, Any]:
        found = self._metadata()
        return {
            "nodes": sorted(broker["id"] for broker in found["brokers"]),
            "controller": found.get("controllerid", -1) >= 0,
        }

    def committed(self, name: str, places: Sequence[Place]) -> list[Position]:
        raise Unsupported("cannot ask for committed offsets")


def _alike(records: Sequence[Record]) -> list[list[int]]:
    """Indices of records that one command can send, in the order of each partition."""
    groups: list[list[int]] = []
    last: Any = None
    # A command writes to one partition: without this, records that alternate would need one each.
    by_partition = sorted(enumerate(records), key=lambda pair: pair[1].get("partition", -1))
    for index, record in by_partition:
        now = (
            record.get("partition"),
            record.get("headers"),
            record.get("timestamp_ms"),
            record.get("key") is None,
        )
        if groups and now == last:
            groups[-1].append(index)
        else:
            groups.append([index])
        last = now
    return groups


def _record(part: str) -> Record:
    topic, partition, offset, key_size, key, size, value, headers, timestamp = part.split(_SEPARATOR)
    return {
        "topic": topic,
        "partition": int(partition),
        "offset": int(offset),
        "key": None if key_size == "-1" else key,
        "value": None if size == "-1" else value,
        "headers": headers,
        "timestamp_ms": int(timestamp),
        "timestamp_type": None,
    }


def _reason(text: str) -> str:
    """The error in kcat's last words."""
    for line in reversed(text.splitlines()):
        if "rror" in line or "failed" in line:
            return (
                "LOCAL " + " ".join(word for word in line.split() if not any(c.isdigit() for c in word))[:100]
            )
    return "LOCAL_FAILED"


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


CLIENT = Kcat
