"""`penstock` as many processes of its own, without the imports of each: forks of one that has imported everything.

Half of what a command does goes to imports. A fork does the rest as any process does: its own arguments, directory,
environment, streams and threads, and the interpreter's whole end.

`python -m support.forked_commands` is the one that forks. It reads a line of JSON for each call and has no threads.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from support.waiting import wait_for


@dataclass
class ForkedCommand:
    """One call. Its stdin is open until it has ended."""

    directory: Path

    def outcome(self, timeout_s: float) -> tuple[int, str, str]:
        """Exit status, stdout, stderr once it has ended."""
        code = self.directory / "code"
        wait_for(code.exists, f"the command of {self.directory} ends", timeout_s)
        out, error = ((self.directory / name).read_text() for name in ("stdout", "stderr"))
        return int(code.read_text()), out, error


class ForkedCommands:
    """What starts them; files of each call lie in a new directory below `directory`."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self._process = process
        self._directory = directory
        self._numbers = count(1)

    def start(self, words: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> ForkedCommand:
        """Begin `penstock WORDS`."""
        directory = self._directory / str(next(self._numbers))
        directory.mkdir()
        call = {"words": list(words), "cwd": str(cwd), "env": dict(environment), "files": str(directory)}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        return ForkedCommand(directory)


@contextlib.contextmanager
def forked_commands(directory: Path) -> Iterator[ForkedCommands]:
    """Ends with every call that it began."""
    process = subprocess.Popen(
        [sys.executable, "-m", "support.forked_commands"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield ForkedCommands(process, directory)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _serve() -> None:
    import penstock

    for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _watch(json.loads(line))
            os._exit(0)


def _watch(call: dict[str, object]) -> None:
    """Fork the command, and say how it ended."""
    files = Path(str(call["files"]))
    reading, writing = os.pipe()  # an open stdin that never says anything
    child = os.fork()
    if child == 0:
        os.close(writing)
        _become(call, files, reading)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    (files / "code.new").write_text(str(status))
    (files / "code.new").rename(files / "code")


def _become(call: dict[str, object], files: Path, stdin: int) -> None:
    """Be the command, to the interpreter's end."""
    from penstock.cli.main import main

    words, environment = call["words"], call["env"]
    assert isinstance(words, list)
    assert isinstance(environment, dict)
    os.dup2(stdin, 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(files / name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
    os.chdir(str(call["cwd"]))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["penstock", *words]
    sys.exit(main())


if __name__ == "__main__":
    _serve()
