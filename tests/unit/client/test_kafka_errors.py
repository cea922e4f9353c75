"""What admin futures of Kafka come to, in the words of the command line."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.cli import kafka
from penstock.cli.kafka import code_of, wait_for
from penstock.errors import CommandError, ExitCode


def failed(future: Future[Any]) -> CommandError:
    with pytest.raises(CommandError) as caught:
        wait_for(future, "topic 'x'")
    return caught.value


def test_an_answer_has_its_code() -> None:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_ALREADY_EXISTS)))
    assert code_of(failed(future)) == KafkaError.TOPIC_ALREADY_EXISTS


def test_no_answer_in_time_has_none_and_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "CALL_TIMEOUT_S", -5)
    error = failed(Future())
    assert (error.message, error.exit_code) == ("topic 'x': no answer in time", ExitCode.UNREACHABLE)
    assert code_of(error) is None
