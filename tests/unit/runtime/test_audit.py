"""The audit log: its file, its queue, and what becomes of it when it cannot be written."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock_core.security.audit import TEXT_LENGTH_MAX, Event
from penstock_runtime.addresses import StartupError
from penstock_runtime.audit import Audit, AuditLog, audit_of, open_audit
from penstock_runtime.audit_file import FileSink
from penstock_runtime.lifecycle import Lifecycle
from penstock_runtime.logs import get_log
from penstock_runtime.settings import RoleSettings
from support.waiting import wait_for

WAIT_S = 60


def event(number: int) -> dict[str, object]:
    return {"event": "change", "resource": str(number)}


class Sink:
    """In memory; `gate` holds it up, `error` makes it fail."""

    def __init__(self) -> None:
        self.data = b""
        self.gate = threading.Event()
        self.gate.set()
        self.error: OSError | None = None
        self.writes = self.failures = 0
        self.closed = False
        self.at_once = 1 << 20

    def write(self, data: bytes) -> int:
        assert self.gate.wait(WAIT_S)
        if self.error is not None:
            self.failures += 1
            raise self.error
        self.writes += 1
        self.data += data[: self.at_once]
        return min(len(data), self.at_once)

    def close(self) -> None:
        self.closed = True

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.data.splitlines()]


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def log(sink: Sink) -> Iterator[AuditLog]:
    made = AuditLog(sink, lambda: "test/1", get_log(), waiting_max=10)
    made.start()
    yield made
    sink.gate.set()
    made.close()


def change(log: Audit, number: int) -> None:
    log.tell_changes(lambda: [event(number)])


def test_lines_are_written_in_order_by_another_thread(log: AuditLog, sink: Sink) -> None:
    sink.at_once = 7  # a pipe may take less
    here = threading.get_ident()
    threads = []

    def expand() -> Iterator[Event]:
        threads.append(threading.get_ident())
        yield event(1)
        yield event(2)

    log.tell_changes(expand)
    log.tell({"event": "login", "outcome": "success"}, lambda: {"rule": "r"})
    log.close()
    assert [each.get("resource") or each["rule"] for each in sink.lines] == ["1", "2", "r"]
    assert {each["process"] for each in sink.lines} == {"test/1"}
    assert threads != [here]
    assert sink.closed


def test_who_tells_never_waits_and_what_is_lost_is_said(log: AuditLog, sink: Sink) -> None:
    sink.gate.clear()
    change(log, 0)
    wait_for(lambda: not log._waiting, "the thread writes", WAIT_S)
    for number in range(1, 16):
        change(log, number)
    assert log.lost == 5
    sink.gate.set()
    wait_for(lambda: len(sink.lines) == 12, "all is written", WAIT_S)
    assert [each.get("resource") for each in sink.lines] == [*map(str, range(11)), None]
    assert (sink.lines[-1]["event"], sink.lines[-1]["count"]) == ("lost", 5)


def test_a_full_disk_is_said_once_and_nothing_is_lost_that_can_wait(log: AuditLog, sink: Sink) -> None:
    sink.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with capture_logs() as lines:
        change(log, 1)
        wait_for(lambda: sink.failures >= 2, "it is tried again", WAIT_S)
        change(log, 2)
        sink.error = None
        wait_for(lambda: len(sink.lines) == 2, "both are written", WAIT_S)
    assert [(each["log_level"], each["reason"]) for each in lines] == [("error", "No space left on device")]
    assert log.lost == 0


def test_at_the_end_of_a_process_a_full_disk_holds_nothing_up(log: AuditLog, sink: Sink) -> None:
    sink.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    change(log, 1)
    wait_for(lambda: sink.failures >= 1, "it is tried", WAIT_S)
    log.close()
    assert sink.closed
    assert log.lost == 1


def test_what_cannot_be_told_is_lost_and_said_and_others_are_written(log: AuditLog, sink: Sink) -> None:
    def fails() -> Iterator[Event]:
        yield event(1)
        raise ValueError("no such name")

    with capture_logs() as lines:
        log.tell_changes(fails)
        log.tell({"event": "login", "outcome": "success", "resource": b"no text"})
        change(log, 2)
        wait_for(lambda: any(each.get("resource") == "2" for each in sink.lines), "others are", WAIT_S)
    assert [each.get("resource") for each in sink.lines] == ["1", "2"]
    assert [each["error"].partition(":")[0] for each in lines] == ["ValueError", "TypeError"]
    assert log.lost == 2


def test_what_waits_holds_no_long_words(log: AuditLog, sink: Sink) -> None:
    sink.gate.clear()
    change(log, 0)
    wait_for(lambda: not log._waiting, "the thread writes", WAIT_S)
    long = "x" * 60_000
    for _ in range(105):
        log.tell({"event": "login", "outcome": "failure", "principal": f"User:{long}"})
    waiting: list[Any] = [what for _, what in log._waiting]
    assert len(waiting) == 10
    assert {len(what["principal"]) for what in waiting} == {TEXT_LENGTH_MAX + 1}
    (counted,) = log._sums["login", "failure"]._counts
    assert max(len(str(value)) for _, value in counted) == TEXT_LENGTH_MAX + 1
    sink.gate.set()
    wait_for(lambda: len(sink.lines) > 10, "they are written", WAIT_S)
    assert sink.lines[1]["principal"] == f"User:{long}"[:TEXT_LENGTH_MAX] + "..."


def test_a_flood_is_summed_up_and_nothing_is_left_out(log: AuditLog, sink: Sink) -> None:
    log._waiting_max = 1_000
    for i in range(5_000):
        log.tell({"event": "login", "outcome": "failure", "address": "192.0.2.1", "user": str(i)})
    log.tell({"event": "login", "outcome": "success", "address": "192.0.2.1"})
    wait_for(lambda: sum(each.get("count", 1) for each in sink.lines) == 5_001, "all are told", WAIT_S)
    assert len(sink.lines) < 1_000
    assert [each for each in sink.lines if each["outcome"] == "success"]  # not hidden among the failures
    assert log.counts["login", "failure"] == 5_000
    assert log.lost == 0


# The file


def test_the_file_is_for_the_owner_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.write_text("old\n")
    path.chmod(0o644)
    sink = FileSink(path, 0, 3)
    assert sink.write(b"new\n") == 4
    assert path.read_text() == "old\nnew\n"
    assert path.stat().st_mode & 0o777 == 0o600
    sink.close()


def test_a_large_one_is_renamed_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink = FileSink(path, 10, 2)
    for word in (b"aaaa\n", b"bbbb\n", b"cccc\n", b"dddd\n", b"eeee\n", b"ffff\n", b"gggg\n"):
        sink.write(word)
    sink.close()
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "audit.log": "gggg\n",
        "audit.log.1": "eeee\nffff\n",
        "audit.log.2": "cccc\ndddd\n",
    }


def test_no_line_is_torn_by_a_rename(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    sink = FileSink(path, 10, 2)
    for part in (b"aaaaaaaa", b"bbbb\n", b"c\n"):
        sink.write(part)
    sink.close()
    assert (tmp_path / "audit.log.1").read_text() == "aaaaaaaabbbb\n"


@pytest.mark.parametrize("how", ["rename", "unlink"])
def test_who_takes_the_file_away_gets_a_new_one(tmp_path: Path, how: str) -> None:
    path = tmp_path / "audit.log"
    sink = FileSink(path, 0, 2)
    sink.write(b"a\n")
    path.rename(tmp_path / "old") if how == "rename" else path.unlink()
    sink.write(b"b\n")
    sink.close()
    assert path.read_text() == "b\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_links_and_what_is_no_file_are_not_written_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").touch()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("link", "none/audit.log", "."):
        with pytest.raises(OSError):
            FileSink(tmp_path / name, 0, 1)
    with pytest.raises(OSError, match="is no file"):
        FileSink(Path("/dev/null"), 0, 1)


# In a process


def opened(**settings: Any) -> tuple[Audit, str]:
    async def scenario() -> tuple[Audit, str]:
        life = Lifecycle("gateway")
        open_audit(RoleSettings(**settings), life)
        life.bind_identity("g1")
        audit = audit_of(life)
        audit.tell({"event": "login", "outcome": "success"})
        await life.end_all()
        assert life.registry.get_sample_value(
            "penstock_audit_events_total", {"event": "login", "outcome": "success"}
        )
        return audit, life.name

    return asyncio.run(scenario())


def test_a_process_writes_to_the_file_of_its_settings(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    opened(audit_log=str(path))
    (said,) = [json.loads(each) for each in path.read_text().splitlines()]
    assert (said["process"], said["event"], said["outcome"]) == ("gateway/g1", "login", "success")


@pytest.mark.parametrize("where", ["auto", ""])
def test_where_nobody_is_known_nothing_is_written(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    audit, _ = opened(audit_log=where)
    assert not audit.writes
    assert "login" not in capfd.readouterr().err


def test_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    opened(audit_log="stderr")
    assert '"process":"gateway/g1","event":"login","outcome":"success"}\n' in capfd.readouterr().err


def test_a_file_that_cannot_be_made_ends_the_start() -> None:
    with pytest.raises(StartupError, match=r"audit_log = /none/a: No such file or directory; name a file"):
        opened(audit_log="/none/a")
