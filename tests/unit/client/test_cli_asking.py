"""Admin requests are asked again where the way to the broker was lost; what they say then is read with that in mind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from penstock.cli import kafka, topic
from penstock.cli.asking import ask, ask_each
from penstock.errors import CommandError, ExitCode


def ended(outcome: object) -> Future[Any]:
    """A future with this value, or with Kafka's error of this code."""
    future: Future[Any] = Future()
    if isinstance(outcome, int):
        future.set_exception(KafkaException(KafkaError(outcome)))
    else:
        future.set_result(outcome)
    return future


def each_in_turn(*outcomes: object) -> Callable[[], Future[Any]]:
    left: Iterator[object] = iter(outcomes)
    return lambda: ended(next(left))


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "PAUSE_S", 0)


@pytest.mark.parametrize("code", [KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT])
def test_a_request_that_was_lost_with_its_broker_is_asked_again(code: int) -> None:
    answer = ask(each_in_turn(code, code, "done"), "topic 'x'")
    assert (answer.result(), answer.repeats) == ("done", True)


@pytest.mark.parametrize("code", [KafkaError.NOT_CONTROLLER, KafkaError.NOT_COORDINATOR])
def test_one_in_the_middle_of_an_election_is_asked_again_and_was_not_carried_out(code: int) -> None:
    answer = ask(each_in_turn(code, "done"), "topic 'x'")
    assert (answer.result(), answer.repeats) == ("done", False)


def test_a_refusal_is_not_asked_again() -> None:
    answer = ask(each_in_turn(KafkaError.TOPIC_AUTHORIZATION_FAILED), "topic 'x'")
    assert answer.says(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(CommandError, match="topic 'x'"):
        answer.result()


def test_what_was_lost_once_is_known_to_repeat_after_an_election_too() -> None:
    lost, away, gone = (
        KafkaError._DESTROY_BROKER,
        KafkaError.NOT_CONTROLLER,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    )
    answer = ask(each_in_turn(lost, away, gone), "topic 'x'")
    assert (answer.repeats, answer.says(gone)) == (True, True)


def test_it_ends_with_the_time_that_a_call_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CALL_TIMEOUT_S", 0)
    answer = ask(each_in_turn(KafkaError._TRANSPORT), "topic 'x'")
    assert answer.error is not None
    assert answer.error.exit_code == ExitCode.UNREACHABLE


def test_only_those_that_were_lost_are_asked_for_again() -> None:
    asked: list[list[str]] = []

    def request(names: list[str]) -> dict[str, Future[Any]]:
        asked.append(names)
        lost = KafkaError._DESTROY_BROKER
        return {name: ended(lost if name == "b" and len(asked) < 3 else name) for name in names}

    answers = ask_each(request, ["a", "b", "c"], lambda name: f"topic {name!r}")
    assert asked == [["a", "b", "c"], ["b"], ["b"]]
    assert {name: answer.result() for name, answer in answers.items()} == {"a": "a", "b": "b", "c": "c"}
    assert [name for name, answer in answers.items() if answer.repeats] == ["b"]


def test_metadata_are_asked_for_again_where_the_broker_that_was_asked_is_gone() -> None:
    class Client:
        ask = staticmethod(each_in_turn(KafkaError._DESTROY_BROKER, "metadata", KafkaError._TIMED_OUT))

        def list_topics(self, timeout: float) -> object:
            return self.ask().result()

    client = Client()
    assert kafka.cluster_metadata(client, "127.0.0.1:1") == "metadata"
    with pytest.raises(CommandError, match="no answer in time"):
        kafka.cluster_metadata(client, "127.0.0.1:1")


# --- commands -------------------------------------------------------------------------------------


class Broker:
    """An admin client whose answers are told beforehand, and what it was asked to delete or make."""

    def __init__(self, *outcomes: object) -> None:
        self._next = each_in_turn(*outcomes)
        self.asked: list[list[str]] = []

    def delete_topics(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        self.asked.append(names)
        return {name: self._next() for name in names}

    def create_topics(self, new: list[Any], **_: Any) -> dict[str, Future[Any]]:
        return self.delete_topics([each.topic for each in new])


def run(monkeypatch: pytest.MonkeyPatch, broker: Broker, *words: str) -> tuple[int | str, str]:
    """Exit code and stderr, or the message of the CommandError."""
    monkeypatch.setattr(topic, "admin_client", lambda _: broker)
    done = CliRunner().invoke(topic.COMMAND, [*words, "--bootstrap", "127.0.0.1:1"])
    if isinstance(done.exception, CommandError):
        return "failed", done.exception.message
    return done.exit_code, done.stderr


def test_a_delete_that_finds_its_own_work_done_has_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(KafkaError._DESTROY_BROKER, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert run(monkeypatch, broker, "delete", "gone") == (0, "deleted topic gone\n")
    assert broker.asked == [["gone"], ["gone"]]


def test_a_delete_of_what_never_was_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for outcomes in (
        [KafkaError.UNKNOWN_TOPIC_OR_PART],
        [KafkaError.NOT_CONTROLLER, KafkaError.UNKNOWN_TOPIC_OR_PART],
    ):
        said = run(monkeypatch, Broker(*outcomes), "delete", "gone")
        assert said == ("failed", "topic 'gone' does not exist; --if-exists makes that no error")


@pytest.mark.parametrize("as_asked", [True, False])
def test_a_create_that_finds_a_topic_after_a_lost_try_looks_at_it(
    as_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic, "_is_as_asked", lambda *_: as_asked)
    broker = Broker(KafkaError._TRANSPORT, KafkaError.TOPIC_ALREADY_EXISTS)
    said = run(monkeypatch, broker, "create", "new")
    if as_asked:
        assert said == (0, "created topic new\n")
    else:
        assert said[0] == "failed"
        assert "a try that got no answer may have made it" in said[1]


def test_a_create_of_what_was_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    said = run(monkeypatch, Broker(KafkaError.TOPIC_ALREADY_EXISTS), "create", "old")
    assert said == ("failed", "topic 'old' exists already; --if-not-exists makes that no error")
