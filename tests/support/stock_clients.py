"""Stock clients that come in by a client's properties, and kcat as a writer and as a member of a group.

What is in the files goes to each client as it is but for its names: kafka-python and aiokafka have their own.
"""

from __future__ import annotations

import itertools
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.java.members import JavaMember
from conformance.java.writer import JavaWriter
from support.clients import WRITERS, ThreadWriter
from support.groups import MEMBERS, GroupMember

KCAT_END_S = 180.0
LOGIN_FAILED = "Authentication failed"
POLL_S = 0.2
LIBRARY = "its librdkafka"
"""Among kcat's settings: the path of another librdkafka than the one that it was made with."""


def lines_of(file: Path) -> dict[str, str]:
    """Keys and values of a client's properties."""
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def config_of(client: str, file: Path, java_file: Path, mechanism: str) -> dict[str, Any]:
    """Settings of a client, with another mechanism than the file's."""
    told = lines_of(file) | {"sasl.mechanism": mechanism}
    if client == "java":
        java = lines_of(java_file) | {"sasl.mechanism": mechanism}
        if mechanism == "PLAIN":
            java["sasl.jaas.config"] = java["sasl.jaas.config"].replace(
                "scram.ScramLoginModule", "plain.PlainLoginModule"
            )
        del java["bootstrap.servers"]
        return java
    if client in ("confluent-kafka", "kcat"):
        del told["bootstrap.servers"]
        return dict(told)
    own: dict[str, Any] = {
        "security_protocol": told["security.protocol"],
        "sasl_mechanism": mechanism,
        "sasl_plain_username": told["sasl.username"],
        "sasl_plain_password": told["sasl.password"],
    }
    if client == "kafka-python":
        return own | {"ssl_cafile": told["ssl.ca.location"]}
    return own | {"ssl_context": ssl.create_default_context(cafile=told["ssl.ca.location"])}


class KcatWriter(ThreadWriter):
    """`kcat -P` again and again: it tells no acks, but ends well when all that it read is acknowledged.

    It goes on where for a moment no broker is there (-E): both gateways of a rolling restart are down for a client
    that does not look again at the one before. Where it gives up its lines may be written or not, and are sent again.
    """

    given_up: tuple[str, ...] = ()
    """What it said each time that it gave up."""

    def run(self) -> None:
        for first in itertools.count(step=self._rate_per_s):
            if self._stop.wait(1):
                return
            numbers = range(first, first + self._rate_per_s)
            lines = "".join(f"key-{n % 8}|{self._value(n).decode()}\n" for n in numbers)
            while True:
                done = subprocess.run(
                    [*kcat(self._bootstrap, self._config), "-E", "-P", "-t", self._topic, "-K", "|"],
                    input=lines,
                    capture_output=True,
                    text=True,
                    timeout=KCAT_END_S,
                    check=False,
                )
                check_logins(done.stderr)
                if done.returncode == 0:
                    break
                self.given_up += (done.stderr[-400:],)
            for number in numbers:
                self._acked(number, -1, None)


class KcatMember(GroupMember):
    """`kcat -G`, which commits by itself from time to time. Where it has given up it is started again."""

    def run(self) -> None:
        output = ("-f", "%p %o %s\n", "-X", "auto.offset.reset=earliest", "-u")
        words = [*kcat(self.bootstrap, self.config), "-G", self.group, *output, self.topic]
        while self.going:
            with tempfile.TemporaryFile("w+") as errors:
                with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
                    ender = threading.Thread(target=self._end, args=(process,))
                    ender.start()
                    for line in process.stdout or ():
                        partition, offset, value = line.rstrip("\n").split(" ", 2)
                        self.ledger.process(int(partition), int(offset), value.encode())
                        self.taken += 1
                    process.wait(KCAT_END_S)
                    ender.join()
                errors.seek(0)
                check_logins(errors.read())

    def _end(self, process: subprocess.Popen[str]) -> None:
        while self.going and process.poll() is None:
            self._stop.wait(POLL_S)
        process.terminate()


def kcat(bootstrap: str, config: dict[str, Any]) -> list[str]:
    """The command, without what it is to do."""
    config = dict(config)
    library = config.pop(LIBRARY, None)
    return [
        *(("env", f"LD_PRELOAD={library}") if library else ()),
        "kcat",
        "-b",
        bootstrap,
        *(word for key, value in config.items() for word in ("-X", f"{key}={value}")),
    ]


def check_logins(said: str) -> None:
    """No word of a failed login is in what kcat said."""
    failed = [line for line in said.splitlines() if LOGIN_FAILED in line]
    assert not failed, failed[:3]


STOCK_WRITERS: dict[str, Callable[..., Any]] = {
    **{name: WRITERS[name] for name in ("confluent-kafka", "kafka-python", "aiokafka")},
    "java": JavaWriter,
    "kcat": KcatWriter,
}
STOCK_MEMBERS: dict[str, Callable[..., GroupMember]] = {
    **{name: MEMBERS[name] for name in ("confluent-kafka", "kafka-python", "aiokafka")},
    "java": JavaMember,
    "kcat": KcatMember,
}
