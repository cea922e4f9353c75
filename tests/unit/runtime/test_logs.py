"""Log lines: JSON in a fixed order, constant events, repeated lines folded, the last ones in memory."""

from __future__ import annotations

import ast
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from penstock_runtime import logs
from penstock_runtime.log_folding import KINDS_MAX, LEVELS, LINES_KEPT, LogFolding


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    before = structlog.get_config()
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield io.StringIO()
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_begin_with_when_how_grave_what_and_who(out: io.StringIO) -> None:
    logs.configure_logs("INFO", "json", out)
    log = logs.get_log(role="gateway", id="gateway-1")
    log.info("node lost", node=2)
    log.error("3 files in /data are damaged", **{logs.CONSTANT: "ended by an error"})
    logging.getLogger("grpc").warning("tried %d times", 3)
    first, second, third = lines(out)
    assert list(first) == ["timestamp", "level", "event", "role", "id", "node"]
    assert (second["event"], second["message"]) == ("ended by an error", "3 files in /data are damaged")
    assert (third["event"], third["message"], third["logger"]) == ("tried %d times", "tried 3 times", "grpc")
    assert [json.loads(line) for line in logs.last_lines()] == [first, second, third]
    assert logs.line_counts() == {"debug": 0, "info": 1, "warning": 1, "error": 1, "critical": 0}


def test_a_flood_of_one_event_is_one_line_and_a_number(out: io.StringIO) -> None:
    logs.configure_logs("INFO", "json", out)
    log = logs.get_log(role="gateway", id="gateway-1")
    for number in range(1_000):
        log.warning("bad request, closing", peer=f"10.0.0.1:{number}")
    logs.write_folded(everything=True)
    written = lines(out)
    assert written[0]["peer"] == "10.0.0.1:0" and "repeated" not in written[0]
    assert sum(1 + int(str(line.get("repeated", 1))) - 1 for line in written) == 1_000
    assert len(written) < 20  # a second may pass on a busy machine, but not many
    assert logs.line_counts()["warning"] == 1_000


def test_what_a_library_repeats_with_other_values_is_one_event(out: io.StringIO) -> None:
    logs.configure_logs("INFO", "json", out)
    for number in range(1_000):
        logging.getLogger("asyncio").warning("fd %d: cannot be accepted", number)
    logging.getLogger("asyncio").warning("another thing")
    logs.write_folded(everything=True)
    written = lines(out)
    assert [line["message"] for line in written[:1]] == ["fd 0: cannot be accepted"]
    assert sum(int(str(line.get("repeated", 1))) for line in written) == 1_001
    assert len(written) < 20


WORDS_OF_OUR_OWN = {"key[0]"}
"""Not in the call itself: what the active controller has done, of a few constant words."""


def test_an_event_is_constant_words_in_every_call() -> None:
    """What varies is in fields, or the event is named beside it (`CONSTANT`)."""
    root = Path(__file__).parents[3]
    seen, varying = 0, []
    for file in [*root.glob("libs/*/src/**/*.py"), *root.glob("services/*/src/**/*.py")]:
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if "log" in text else ():
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
                continue
            if node.func.attr not in LEVELS:
                continue
            log = ast.unparse(node.func.value)
            if not log.endswith(("log", "get_log()")):
                continue
            seen += 1
            first = node.args[0]
            choices = [first.body, first.orelse] if isinstance(first, ast.IfExp) else [first]
            constant = all(
                isinstance(each, ast.Constant)
                or (isinstance(each, ast.Name) and each.id.lstrip("_").isupper())
                for each in choices
            )
            named = any(word.arg is None and "CONSTANT" in ast.unparse(word.value) for word in node.keywords)
            if not (constant or named or ast.unparse(first) in WORDS_OF_OUR_OWN):
                varying.append(f"{file.relative_to(root)}:{node.lineno}: {ast.unparse(first)}")
    assert seen > 100
    assert varying == []


def test_another_state_is_no_repetition(out: io.StringIO) -> None:
    logs.configure_logs("INFO", "json", out)
    log = logs.get_log(role="controller", id="1")
    log.info("quorum", active=False)
    log.info("quorum", active=True)
    log.info("operation", operation=4, state="running", phase="moving leaders")
    log.info("operation", operation=4, state="running", phase="moving replicas")
    assert len(lines(out)) == 4


def test_people_read_the_text_itself(out: io.StringIO) -> None:
    logs.configure_logs("INFO", "console", out)
    logs.get_log().error("node_id is missing; give it", **{logs.CONSTANT: "ended by an error"})
    assert "node_id is missing; give it" in out.getvalue()
    assert logs.CONSTANT not in out.getvalue()


def test_the_last_lines_stay_in_memory(out: io.StringIO) -> None:
    logs.configure_logs("DEBUG", "json", out)
    log = logs.get_log()
    for number in range(LINES_KEPT + 10):
        log.debug("step", number=number)  # of level DEBUG: never folded
    kept = [json.loads(line)["number"] for line in logs.last_lines()]
    assert kept == list(range(10, LINES_KEPT + 10))


def line(event: str = "node lost", **fields: object) -> dict[str, object]:
    return {"level": "warning", "event": event, **fields}


def test_nothing_is_held_back_for_ever_nor_counted_twice() -> None:
    folding = LogFolding()
    assert folding.admit(line(node=1), 10.0)
    assert not folding.admit(line(node=1, reason="a"), 10.1)
    assert not folding.admit(line(node=1, reason="b"), 10.2)
    assert folding.admit(line(node=2), 10.3), "another node is another line"
    assert folding.due(10.9) == []
    assert folding.due(11.0) == [line(node=1, reason="b", repeated=2)]
    assert not folding.admit(line(node=1, reason="c"), 11.5), "a second since the last one was written"
    late = line(node=1, reason="d")
    assert folding.admit(late, 12.1)
    assert late["repeated"] == 2, "of c and d: what lines stand for adds up to what happened"
    assert folding.rest() == []


def test_many_subjects_take_no_more_memory() -> None:
    folding = LogFolding()
    written = sum(folding.admit(line(node=number), 0.0) for number in range(10 * KINDS_MAX))
    assert written == KINDS_MAX + 1
    assert [each["repeated"] for each in folding.rest()] == [9 * KINDS_MAX - 1]
    assert folding.due(100.0) == []
