"""The suite's own machinery: comparing, names put back, lines to and from a client's process, the table."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance import build, report
from conformance.client import Client, ClientError, Unsupported
from conformance.clients import franz_go
from conformance.clients.kcat import _alike
from conformance.clients.registry import CLIENTS, ONLY_NAMED, local, make
from conformance.frame import SCENARIOS, Cell, attempt, until
from conformance.known import EXPLAINED, KNOWN
from conformance.oracle import SAME_FROM, _compact, _spread
from conformance.remote import Remote, serve
from conformance.rights import ways
from conformance.runner import _neutral, compare
from conformance.scenarios import load, rights
from conformance.targets import DIRECT, KAFKA, PROXY
from penstock_kafka.wire.apis import SUPPORTED, ApiKey

load()


def cells(**by_target: Any) -> dict[str, Cell]:
    """Compared cells of one scenario by target; the values are outcomes, or statuses with a *."""
    names = {"kafka": KAFKA, "proxy": PROXY, "direct": DIRECT}
    made = []
    for short, value in by_target.items():
        status = value[1:] if isinstance(value, str) and value.startswith("*") else "ran"
        made.append(Cell("headers", "aiokafka", names[short], status, outcome=value, reason="why"))
    return {cell.target: cell for cell in compare(made)}


def test_equal_is_green_and_different_is_red_with_the_difference() -> None:
    found = cells(kafka=[1, {"a": 2}], proxy=[1, {"a": 2}], direct=[1, {"a": 3}])
    assert (found[KAFKA].status, found[PROXY].status, found[DIRECT].status) == ("green", "green", "red")
    assert any(line.startswith("-") and "2" in line for line in found[DIRECT].diff)
    assert any(line.startswith("+") and "3" in line for line in found[DIRECT].diff)


def test_what_kafka_did_not_end_is_nobodys_green() -> None:
    assert cells(kafka="*red", proxy=[1])[PROXY].status == "none"
    assert cells(kafka="*n/a", proxy="*n/a")[PROXY].status == "n/a"
    assert cells(kafka=[1], proxy="*red")[PROXY].status == "red"
    assert cells(proxy=[1])[PROXY].status == "none"


def test_a_recorded_oracle_judges_where_no_kafka_runs() -> None:
    cell = Cell("headers", "aiokafka", PROXY, "ran", outcome=[1])
    assert compare([cell], {"headers aiokafka": [1]})[0].status == "green"
    assert compare([cell], {"headers aiokafka": [2]})[0].status == "red"


def test_known_differences_name_scenarios_and_are_not_red() -> None:
    for (scenario, client, target), why in KNOWN.items():
        assert scenario in SCENARIOS
        assert why
        ours = Cell(scenario, client, target, "ran", outcome=[1])
        judged = compare([ours, replace(ours, target=KAFKA, outcome=[2])])
        assert [cell.status for cell in judged] == ["known", "green"]


def test_names_of_a_run_are_put_back_and_long_strings_shortened() -> None:
    prefix = "headers.aiokafka.kafka.7"
    found = _neutral({f"{prefix}.t": ("x" * 200, f"in {prefix}.g", None, 3)}, prefix)
    assert found["~t"][1:] == ["in ~g", None, 3]
    assert "200 characters" in found["~t"][0]


def test_clients_that_play_only_what_names_them_are_named_somewhere() -> None:
    named = {client for scenario in SCENARIOS.values() for client in scenario.clients}
    assert set(ONLY_NAMED) <= named <= set(CLIENTS)
    assert franz_go.version().count(".") == 2


class Scripted(Client):
    """Plays a group with ten records in one partition, and notes what is done in transactions."""

    def __init__(self) -> None:
        super().__init__("nowhere:1")
        self.at, self.place, self.held = 0, 0, 0
        self.log: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name in ("open_consumer", "open_producer", "init_transactions", "subscribe", "begin"):
            return lambda *_: None
        if name in ("close_producer", "close_consumer"):
            return lambda *_: self.log.append(name)
        return super().__getattribute__(name)

    def poll(self, name: str, count: int, timeout_ms: int) -> list[dict[str, Any]]:
        found = range(self.at, min(10, self.at + count))
        self.at = found.stop
        return [{"topic": "in", "partition": 0, "offset": n, "value": str(n)} for n in found]

    def send(self, name: str, topic: str, records: Sequence[dict[str, Any]]) -> list[Any]:
        self.log.append(" ".join(record["value"] for record in records))
        return []

    def send_offsets(self, name: str, consumer: str, positions: Sequence[list[Any]]) -> None:
        ((_, _, self.held),) = positions

    def commit_transaction(self, name: str) -> None:
        self.place = self.held

    def abort_transaction(self, name: str) -> None:
        self.log.append("aborted")

    def seek(self, name: str, topic: str, partition: int, offset: int | str) -> None:
        self.at = int(offset)


def test_a_copy_goes_back_after_each_abort() -> None:
    client = Scripted()
    client.copy("g", "in", "out", 10, 4, 2)
    assert client.log == [
        "<0> <1> <2> <3>", "<4> <5> <6> <7>", "aborted", "<4> <5> <6> <7>", "<8> <9>", "aborted", "<8> <9>",
        "close_producer", "close_consumer",
    ]  # fmt: skip
    assert client.place == 10


class Echo(Client):
    """Answers each kind of call in one way."""

    def list_topics(self) -> list[str]:
        return ["ä"]

    def delete_topics(self, names: Sequence[str]) -> dict[str, str]:
        raise ClientError("SOME_ERROR", "text")

    def describe_cluster(self) -> dict[str, Any]:
        raise KeyError("a fault of the client's")


def test_lines_to_a_client_and_back() -> None:
    calls: list[dict[str, Any]] = [
        {"op": "list_topics", "args": {}},
        {"op": "delete_topics", "args": {"names": ["a"]}},
        {"op": "describe_cluster", "args": {}},
        {"op": "log_dirs", "args": {"topic": "a"}},
        {"op": "kill", "args": {}},
    ]
    out = io.StringIO()
    serve(Echo("nowhere:1"), [json.dumps(call) for call in calls], out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert answers[0] == {"ok": ["ä"]}
    assert answers[1] == {"error": "SOME_ERROR", "message": "text"}
    assert answers[2]["error"] == "LOCAL_KeyError"
    assert "DescribeLogDirs" in answers[3]["unsupported"]
    assert "unsupported" in answers[4]


def test_a_process_that_dies_is_an_error_and_one_that_answers_is_heard(tmp_path: Path) -> None:
    script = tmp_path / "client.py"
    script.write_text('import sys\nprint(\'{"ok": ["x"]}\', flush=True)\nsys.stdin.readline()\n')
    client = Remote("nowhere:1", [sys.executable, str(script)])
    assert client.list_topics() == ["x"]
    with pytest.raises(ClientError, match="LOCAL_PROCESS_DIED"):
        client.list_topics()
    client.close()


def test_a_client_in_a_process_of_its_own_can_be_killed() -> None:
    client = make("kcat", "127.0.0.1:1")
    with pytest.raises(Unsupported):
        client.delete_groups(["g"])
    client.kill()
    with pytest.raises(ClientError):
        client.list_topics()
    client.close()
    assert local("raw", "127.0.0.1:1").name == "raw"


def test_attempt_and_until() -> None:
    def refused() -> None:
        raise ClientError("NO")

    assert attempt(refused) == {"error": "NO"}
    values = iter([1, 2, 3])
    assert until(lambda: next(values), lambda value: value == 2) == 2
    assert until(lambda: 0, bool, seconds=0) == 0


def test_requests_are_built_in_every_version_and_shapes_leave_out_what_differs() -> None:
    for version in build.versions("metadata"):
        made = build.request("metadata", version, {"topics": [{"name": "t", "topic_id": None}]})
        assert len(made.topics) == 1
    answer = build.entity("metadata", 1, "response")(brokers=(), controller_id=3, topics=())
    assert build.shape(answer) == {"topics": []}


def test_kcat_sends_alike_records_by_one_command() -> None:
    records = [{"value": "a", "partition": 0}, {"value": "b", "partition": 0}, {"value": "c", "partition": 1}]
    assert _alike(records) == [[0, 1], [2]]


def test_the_document_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    made = [Cell("headers", "aiokafka", target, "green") for target in (PROXY, DIRECT, KAFKA)]
    made.append(Cell("headers", "kcat", PROXY, "n/a", reason="cannot"))
    report.write_document(report.markdown(made, ["aiokafka", "kcat"], "2026-01-01"), page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "old" not in text
    assert "| `headers` |" in text
    assert "* kcat cannot: `headers`" in text


def test_every_api_that_is_advertised_has_a_row_of_rights() -> None:
    signing_in = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}
    assert {row.api for row in rights.ROWS} | signing_in == set(SUPPORTED)
    for row in rights.ROWS:
        names = [name for name, _ in ways(row)]
        assert len(set(names)) == len(names)
        assert {"none", "allow", "deny over allow", "prefix", "wildcard", "the host", "another host"} <= {
            *names
        }


def test_a_large_outcome_is_kept_each_value_once_and_read_back() -> None:
    outcome = {f"there/way {n}": {"error_code": "X"} if n % 2 else {} for n in range(SAME_FROM + 1)}
    kept = json.loads(_compact(outcome))
    assert len(kept["same"]) == 2
    assert _spread(kept) == outcome
    assert _spread(json.loads(_compact({"a": 1}))) == {"a": 1}


def test_entries_that_a_page_explains_are_known_and_others_are_red() -> None:
    name = "rights-list-config-resources-describe-configs-cluster"
    kafkas = {"there/allow/1": {"x": [{"resource_type": 8}]}, "there/none/1": {"error_code": "DENIED"}}
    ours = {"there/allow/1": {"x": []}, "there/none/1": {"error_code": "DENIED"}}
    judge = Cell(name, "raw", KAFKA, "ran", outcome=kafkas)
    (_, known) = compare([judge, Cell(name, "raw", PROXY, "ran", outcome=ours)])
    assert known.status == "known"
    assert "decisions/0045" in known.reason
    let_in = ours | {"there/none/1": {"x": []}}
    (_, red) = compare([judge, Cell(name, "raw", PROXY, "ran", outcome=let_in)])
    assert red.status == "red"
    assert not any("resource_type" in line for line in red.diff), "what is explained is not shown"


def test_pages_that_explain_are_there() -> None:
    folder = Path(__file__).resolve().parents[2] / "docs"
    for one in EXPLAINED:
        page, _, anchor = one.page.partition("#")
        (found,) = folder.glob(f"{page}-*.md")
        heads = [line for line in found.read_text().splitlines() if line.startswith("## ")]
        assert not anchor or anchor in {head[3:].lower().replace(" ", "-") for head in heads}
