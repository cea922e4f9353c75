"""The command as the one who restarts processes: it asks the controllers for the next one, and does it once.

What is restarted, when, and whether it is well again is decided by the active controller; this only carries it out, and
shows how far it is. While it asks it holds a lease. Whoever ends it (Ctrl-C, or worse) pauses the operation, and
`penstock operation resume ID --via ...` goes on.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.follow import PATIENCE_S, outcome, telling
from penstock.cli.output import note, print_json
from penstock.cli.via.ways import ProcessName, Way
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

if TYPE_CHECKING:
    from penstock.cli.admin import Admin
    from penstock_proto.v1 import metadata_pb2, operations_pb2

Json = dict[str, Any]

TAKE_OVER_S: Final = 20.0
"""How long it waits for another command's lease to end."""
ASK_S: Final = 0.5


class Restarts:
    """One run of the command."""

    def __init__(
        self,
        admin: Admin,
        way: Way,
        operation_id: int,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._admin = admin
        self._way = way
        self._operation_id = operation_id
        self._executor_id = secrets.token_hex(8)
        self._clock_s = clock_s
        self._sleep = sleep
        self._begun: set[tuple[str, bytes]] = set()
        """Steps that this run has restarted, or found restarted, by name and boot id of before."""
        self._worker: threading.Thread | None = None
        self._failures: list[CommandError] = []

    def run(self, *, wait_s: float | None = None, as_json: bool = False, resume: bool = False) -> int:
        """Restart what there is to restart until the operation has ended; the exit code.

        `resume`: it may be paused by a person, who wants it to go on now. Raises CommandError, GOES_ON when `wait_s` is
        over.
        """
        begun_s = self._clock_s()
        self._ask(patience_s=TAKE_OVER_S)
        if resume:
            self._resume()
        try:
            with telling(watch=True, as_json=as_json) as tell:
                while True:
                    response = self._ask()
                    operation = _document(response)
                    tell(operation)
                    if _has_ended(operation):
                        break
                    self._check(operation)
                    if wait_s is not None and self._clock_s() - begun_s >= wait_s:
                        self._leave()
                        return outcome(operation, "done", wait_s)
                    if response.HasField("step"):
                        self._restart(response.step, response.http)
                    self._sleep(ASK_S)
        except KeyboardInterrupt:
            self._leave()
            note(
                f"operation {self._operation_id} is paused; "
                f"`penstock operation resume {self._operation_id} --via {self._way.via}` goes on"
            )
            return ExitCode.INTERRUPTED
        finally:
            self._finish()
        if as_json:
            print_json(operation)
        return outcome(operation, "done", None)

    # --- asking ------------------------------------------------------------------------------

    def _ask(self, patience_s: float = 0.0) -> operations_pb2.ExecuteOperationResponse:
        """Gateways and controllers are restarted too: one that does not answer is asked again for a while.

        `patience_s`: how long another command that carries the operation out is waited for.
        """
        begun_s = self._clock_s()
        waiting = False
        while True:
            try:
                response = self._admin.execute(self._request())
            except CommandError as error:
                if error.exit_code != ExitCode.UNREACHABLE or self._clock_s() - begun_s > PATIENCE_S:
                    raise
                self._sleep(ASK_S)
                continue
            if not response.error.code:
                return response
            if response.ask_again_ms and self._clock_s() - begun_s < patience_s and self._is_taken(response):
                if not waiting:
                    note(harmless(response.error.message))
                waiting = True
                self._sleep(1.0)
                continue
            raise CommandError(harmless(response.error.message))

    def _is_taken(self, response: operations_pb2.ExecuteOperationResponse) -> bool:
        from penstock_core.errors import ErrorCode

        return response.error.code == ErrorCode.REBALANCE_IN_PROGRESS

    def _request(self, *, leaving: bool = False) -> operations_pb2.ExecuteOperationRequest:
        from penstock_proto.v1 import operations_pb2

        return operations_pb2.ExecuteOperationRequest(
            operation_id=self._operation_id,
            executor_id=self._executor_id,
            via=self._way.via,
            leaving=leaving,
        )

    def _resume(self) -> None:
        from penstock_proto.v1 import operations_pb2

        request = operations_pb2.ControlOperationRequest(
            operation_id=self._operation_id, control=operations_pb2.OPERATION_CONTROL_RESUME
        )
        self._admin.control(request)

    # --- doing -------------------------------------------------------------------------------

    def _restart(self, step: metadata_pb2.OperationStep, http: str) -> None:
        """Once for each: the same step is told until its process is seen to be another one."""
        key = step.name, step.boot_id_before
        if key in self._begun or (self._worker is not None and self._worker.is_alive()):
            return
        self._begun.add(key)
        process = ProcessName(step.role, step.name, http)
        restarted_since = getattr(self._way, "restarted_since", None)

        def work() -> None:
            try:
                # Another run of the command may have begun the step, and may have been killed before the process was
                # heard of. Asked here too, for it can take longer than the lease.
                if restarted_since is None or not restarted_since(process, step.started_ms):
                    self._way.restart(process)
            except CommandError as error:
                self._failures.append(CommandError(f"{process.name}: {error.message}", error.exit_code))
            except Exception as error:  # told by who waits for it
                self._failures.append(CommandError(f"{process.name}: {type(error).__name__}: {error}"))

        # Apart, so that asking goes on: it is how the controllers know that somebody is there.
        self._worker = threading.Thread(target=work, name=f"restart {process.name}", daemon=True)
        self._worker.start()

    def _check(self, operation: Json) -> None:
        """Leave where nothing goes on without a person. Raises CommandError."""
        again = (
            f"mend it, then `penstock operation resume {self._operation_id} --via {self._way.via}` goes on"
        )
        if self._failures:
            self._leave()
            raise CommandError(
                f"{self._failures[0].message}; operation {self._operation_id} is paused: {again}"
            )
        late = [
            step["reason"] for step in operation["steps"] if step["state"] == "running" and step["reason"]
        ]
        if late and operation["state"] == "paused":
            self._leave()
            raise CommandError(f"operation {self._operation_id} is paused ({harmless(late[0])}): {again}")

    def _finish(self) -> None:
        """Wait for the restart at hand: a process that was ended has to be started."""
        if self._worker is not None and self._worker.is_alive():
            note("waiting for the restart at hand to end")
            self._worker.join()

    def _leave(self) -> None:
        self._finish()
        try:
            self._admin.execute(self._request(leaving=True))
        except CommandError:
            # The lease ends by itself.
            return


def _document(response: operations_pb2.ExecuteOperationResponse) -> Json:
    from penstock_core.operation_documents import operation_document

    return operation_document(response.operation)


def _has_ended(operation: Json) -> bool:
    from penstock_core.operation_documents import ENDED

    return operation["state"] in ENDED
