"""A client in a process of its own: one JSON object per line each way (the form stands in `frame`).

`Remote` is this end. `python -m conformance.remote <client> <bootstrap>` is the other end for clients in
Python.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from conformance.client import OPERATIONS, Client, ClientError, Unsupported

TESTS = Path(__file__).resolve().parents[1]
END_TIMEOUT_S = 30.0


class Remote(Client):
    """Every call goes to the process as a line; one call at a time."""

    def __init__(self, bootstrap: str, command: Sequence[str], log: Path | None = None) -> None:
        super().__init__(bootstrap)
        self._command = list(command)
        self._log = log
        self._lock = threading.Lock()
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONWARNINGS": "ignore"}
        with open(log or os.devnull, "ab") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env=environment,
            )

    def call(self, op: str, arguments: dict[str, Any]) -> Any:
        """Send one line, wait for its answer."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise ClientError("LOCAL_PROCESS_DIED")
        with self._lock:
            try:
                stdin.write(json.dumps({"op": op, "args": arguments}) + "\n")
                stdin.flush()
                line = stdout.readline()
            except (BrokenPipeError, ValueError) as error:
                raise ClientError("LOCAL_PROCESS_DIED", str(error)) from error
        if not line:
            raise ClientError("LOCAL_PROCESS_DIED", f"exit status {self._process.poll()}")
        answer = json.loads(line)
        if "unsupported" in answer:
            raise Unsupported(answer["unsupported"])
        if "error" in answer:
            raise ClientError(answer["error"], answer.get("message", ""))
        return answer.get("ok")

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        # A thread that waits for an answer reads the end now, and lets go. Left open, the pipes would be
        # found by the garbage collector, and its warning blamed on whatever test runs then.
        with self._lock:
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    if pipe is not None:
                        pipe.close()

    def spawn(self) -> Client:
        return Remote(self.bootstrap, self._command, self._log)


def _forward(op: str) -> Callable[..., Any]:
    signature = inspect.signature(getattr(Client, op))

    def method(self: Remote, *words: Any, **named: Any) -> Any:
        arguments = dict(signature.bind(self, *words, **named).arguments)
        arguments.pop("self")
        return self.call(op, arguments)

    return method


for _op in OPERATIONS:
    setattr(Remote, _op, _forward(_op))


def serve(client: Client, lines: Any, answers: Any) -> None:
    """Carry out line after line until there are no more."""
    for line in lines:
        answer: dict[str, Any]
        try:
            request = json.loads(line)
            if request["op"] not in OPERATIONS:
                raise Unsupported(f"knows no {request['op']}")
            answer = {"ok": getattr(client, request["op"])(**request["args"])}
        except Unsupported as error:
            answer = {"unsupported": str(error)}
        except ClientError as error:
            answer = {"error": error.name, "message": error.message}
        except Exception as error:  # the other end shows it in the outcome
            answer = {"error": f"LOCAL_{type(error).__name__}", "message": str(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def main() -> None:
    """`python -m conformance.remote <client> <bootstrap>`."""
    from conformance.clients.registry import local

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a client prints must not come between the lines
    client = local(sys.argv[1], sys.argv[2])
    serve(client, sys.stdin, answers)
    os._exit(0)


if __name__ == "__main__":
    main()
