"""Planned operations of a cluster that is hurt meanwhile: the real command, and who restarts processes for it.

Rules: an operation is watched by the command line alone, as people do. The command that carries a rolling restart out
reaches the harness through a socket, so that both never start or end one process at the same time.
"""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chaos import secure
from chaos.cluster import Cluster
from penstock.cli.main import run as penstock
from support.waiting import wait_for

Json = dict[str, Any]

COMMAND_TIMEOUT_S = 400
"""What the command is told to wait for; the run's own deadline is shorter."""
END_TIMEOUT_S = 300.0
BEGIN_TIMEOUT_S = 60.0
ENDED = ("done", "cancelled", "failed")
_ASK = (
    "import socket,sys;s=socket.socket(socket.AF_UNIX);s.connect(sys.argv[1]);s.sendall(sys.argv[2].encode());"
    "sys.exit(s.recv(1)!=b'+')"
)


class Commands:
    """The command line, aimed at all gateways of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        came_in: list[str] = []
        if cluster.state.secure:
            came_in = ["--client-config", str(secure.admin_file(cluster.directory))]
        self._where = ["--gateway", cluster.bootstrap("grpc"), *came_in]
        self._kafka = ["--bootstrap", cluster.bootstrap("kafka"), *came_in]

    def told(self, *words: str) -> Any:
        """The document that a command prints; None when it failed, which a cluster that is hurt may make it."""
        return _told([*words, *self._where])

    def reassigned(self, topic: str) -> list[Json]:
        """Partitions that are on their way."""
        found = _told(["topic", "reassign", topic, "--status", *self._kafka])
        assert found is not None, f"nobody tells whether {topic} is reassigned"
        return list(found)

    def began(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        """A command as a process of its own; what it says is kept in `log`."""
        with log.open("wb") as file:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "penstock.cli.main", *words, *self._where],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )


def _told(words: Sequence[str]) -> Any:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = penstock([*words, "--json"])
    return json.loads(out.getvalue()) if code == 0 else None


class Restarter:
    """Restarts processes for `--via exec`. Use as a context manager."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._path = cluster.directory / "restarts"
        self._socket = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve, name="restarter", daemon=True)
        self.lock = threading.Lock()
        """Held while a process is ended or started."""
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def __enter__(self) -> Restarter:
        self._socket.bind(str(self._path))
        self._socket.listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # A thread that waits for a caller is woken by this, and not by closing alone.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        self._path.unlink()

    @property
    def words(self) -> list[str]:
        """Options of a command that has its processes restarted here."""
        return [
            "--via",
            "exec",
            "--command",
            shlex.join([sys.executable, "-c", _ASK, str(self._path), "{name}"]),
        ]

    def _serve(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:
                return
            with caller:
                name = caller.recv(200).decode()
                try:
                    self._restart(name)
                except Exception as error:  # told by the operation too
                    self.failures.append(f"{name}: {error}")
                    answer = b"-"
                else:
                    answer = b"+"
                # Who asked may have been killed; what was asked for is done.
                with contextlib.suppress(OSError):
                    caller.sendall(answer)

    def _restart(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1
            self._cluster.terminate(name)
            self._cluster.start(name, ready=False)


class Operation:
    """One operation, from its command to its end."""

    def __init__(self, commands: Commands, process: subprocess.Popen[bytes], log: Path) -> None:
        self._commands, self._process, self._log = commands, process, log
        self._known = {each["operation_id"] for each in self._list()}
        self.operation_id = 0
        self.reasons: list[str] = []
        """Why it was paused, if it was."""

    @classmethod
    @contextlib.contextmanager
    def begun(cls, commands: Commands, log: Path, *words: str) -> Iterator[Operation]:
        """`words` with `--yes`; returns once it is recorded. The command is ended with the context."""
        known = {each["operation_id"] for each in commands.told("operation", "list", "--all") or ()}
        process = commands.began(log, *words, "--yes", "--wait", str(COMMAND_TIMEOUT_S))
        try:
            made = cls(commands, process, log)
            made._known = known
            wait_for(made._is_recorded, f"`penstock {' '.join(words[:2])}` is recorded", BEGIN_TIMEOUT_S)
            yield made
        finally:
            process.kill()
            process.wait()

    def show(self) -> Json | None:
        """As it is now; None when nobody tells."""
        found: Json | None = self._commands.told("operation", "show", str(self.operation_id))
        return found

    def kill_command(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def wait_until_under_way(self) -> Json:
        """Until a move runs, or a storage node is being restarted."""

        def found() -> Json | None:
            shown = self.show()
            if shown is None:
                return None
            assert shown["state"] not in ENDED, f"it ended before it could be hurt: {shown}"
            moves = shown["progress"]["moves_running"] > 0
            return shown if moves or running_nodes(shown) else None

        shown = wait_for(found, "the operation is under way", END_TIMEOUT_S)
        assert shown is not None
        return shown

    def wait_until_done(self, *resume: str) -> Json:
        """Until it is `done`. One that is paused says why, and goes on with `operation resume` and these words."""
        resumed = False

        def ended() -> Json | None:
            nonlocal resumed
            shown = self.show()
            if shown is None:
                return None
            # One that waits for its executor by itself is paused for a moment too: who is there goes on.
            if shown["state"] == "paused" and self._process.poll() is not None and not resumed:
                assert shown["reason"], f"it is paused and does not say why: {shown}"
                self.reasons.append(shown["reason"])
                resumed = True
                words = ("operation", "resume", str(self.operation_id), *resume)
                self._process = self._commands.began(self._log, *words)
            return shown if shown["state"] in ENDED else None

        shown = wait_for(ended, "the operation has ended", END_TIMEOUT_S)
        assert shown is not None
        assert shown["state"] == "done", shown
        return shown

    def command_status(self) -> int:
        """How the command ended, that was told to wait."""
        try:
            return self._process.wait(BEGIN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError("the operation is done and its command still waits") from None

    def last_words(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").splitlines()[-3:])

    def _is_recorded(self) -> bool:
        new = [each for each in self._list() if each["operation_id"] not in self._known]
        if new:
            self.operation_id = new[0]["operation_id"]
        elif self._process.poll():
            raise AssertionError(f"the command was refused: {self.last_words()}")
        return bool(new)

    def _list(self) -> list[Json]:
        return self._commands.told("operation", "list", "--all") or []


def running_nodes(shown: Json) -> list[str]:
    """Storage nodes whose restart is under way."""
    return [s["name"] for s in shown["steps"] if s["state"] == "running" and s["role"] == "storage-node"]
