"""Talking to a cluster by Kafka's protocol: clients, deadlines, and errors in plain words.

librdkafka keeps trying for ever and tells its troubles to stderr. Here a broker that
cannot be reached is found out first, by one question within a bound (`reach`); its own log
is switched off; and every error that comes back is turned into one line.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli import reach
from penstock.cli.local_gateways import directory_of, directory_option, local_gateways
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

Command = TypeVar("Command", bound=Callable[..., Any])

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
CALL_TIMEOUT_S: Final = 15.0


class FoundBootstrap(str):
    """Addresses that nobody named; `mend` says what to do if nobody answers there."""

    mend: str

    def __new__(cls, addresses: str, mend: str) -> FoundBootstrap:
        found = super().__new__(cls, addresses)
        found.mend = mend
        return found


def _named_or_found(ctx: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    return value if value is not None or ctx.resilient_parsing else find_bootstrap(directory_of(ctx))


def find_bootstrap(directory: Path) -> FoundBootstrap:
    """Kafka addresses of the running local cluster in `directory`, or the default."""
    local = local_gateways(directory, "kafka")
    if local.addresses:
        return FoundBootstrap(",".join(local.addresses), local.mend)
    return FoundBootstrap(BOOTSTRAP_DEFAULT, f"{local.mend}, --bootstrap HOST:PORT names another")


_bootstrap_alone = click.option(
    "--bootstrap",
    "-b",
    envvar="PENSTOCK_BOOTSTRAP",
    callback=_named_or_found,
    metavar="HOST:PORT[,...]",
    help="Kafka address of one or more gateways. Also PENSTOCK_BOOTSTRAP. By default those of the running local "
    f"cluster in --dir, else {BOOTSTRAP_DEFAULT}.",
)


def bootstrap_option(command: Command) -> Command:
    """`--bootstrap`, and `--dir` of the local cluster that stands in for it."""
    return _bootstrap_alone(directory_option(command))


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")


def client_config(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Settings that every client of the command has."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "penstock-cli",
        # Its log would go to stderr in a form of its own; failures reach us as errors.
        "logger": _silent_logger(),
        "error_cb": lambda _error: None,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        **more,
    }


def kafka_connection(bootstrap: str) -> socket.socket:
    """A connection to the first of the addresses at which a Kafka broker answers.

    Raises UNREACHABLE, in a line that says of each address what is wrong with it.
    """
    problems = []
    for address in reach.addresses_of(bootstrap, "--bootstrap"):
        found = reach.kafka_connection(address)
        if not isinstance(found, reach.Problem):
            return found
        problems.append(found)
    if isinstance(bootstrap, FoundBootstrap):
        mend = bootstrap.mend
    elif any(problem.is_another_port for problem in problems):
        mend = "give --bootstrap the cluster's Kafka address; `penstock local status` shows a local cluster's"
    else:
        mend = "is the cluster up (`penstock local status`), and is --bootstrap right?"
    raise CommandError(
        f"no broker can be reached ({'; '.join(map(str, problems))}); {mend}", ExitCode.UNREACHABLE
    )


def check_reachable(bootstrap: str) -> None:
    """Raise UNREACHABLE unless a Kafka broker answers at one of the addresses."""
    kafka_connection(bootstrap).close()


def admin_client(bootstrap: str) -> AdminClient:
    """An admin client of a cluster that was seen to answer."""
    from confluent_kafka.admin import AdminClient

    check_reachable(bootstrap)
    return AdminClient(client_config(bootstrap))


def cluster_metadata(client: Any, bootstrap: str, topic: str | None = None) -> Any:
    """Metadata of all topics or of one, from any client; raises UNREACHABLE after a bound."""
    from confluent_kafka import KafkaException

    try:
        return (
            client.list_topics(topic, timeout=CALL_TIMEOUT_S)
            if topic
            else client.list_topics(timeout=CALL_TIMEOUT_S)
        )
    except KafkaException as error:
        raise failure(error.args[0], f"the cluster at {bootstrap}") from error


def topic_metadata(client: Any, bootstrap: str, topic: str) -> Any:
    """Metadata of one topic; an unknown one is an error that says how to make it."""
    from confluent_kafka import KafkaError

    found = cluster_metadata(client, bootstrap, topic).topics[topic]
    if found.error is not None and found.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
        raise failure(found.error, f"topic {topic!r}")
    return found


def failure(error: KafkaError, thing: str) -> CommandError:
    """An error of the client library or the broker, in one line that names `thing` and the mend."""
    from confluent_kafka import KafkaError

    code = error.code()
    name = thing.split("'")[1] if "'" in thing else "NAME"
    unreachable = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE)
    if code in unreachable:
        return CommandError(f"{thing}: no broker answers ({error.str()})", ExitCode.UNREACHABLE)
    if code in (KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError._MSG_TIMED_OUT):
        return CommandError(
            f"{thing}: no answer in time; look at `penstock local status`", ExitCode.UNREACHABLE
        )
    mends = {
        KafkaError.UNKNOWN_TOPIC_OR_PART: f"does not exist; make it with `penstock topic create {name}`",
        KafkaError._UNKNOWN_TOPIC: f"does not exist; make it with `penstock topic create {name}`",
        KafkaError._UNKNOWN_PARTITION: f"has no such partition; see `penstock topic describe {name}`",
        KafkaError.TOPIC_ALREADY_EXISTS: "exists already; --if-not-exists makes that no error",
    }
    if code in mends:
        return CommandError(f"{thing} {mends[code]}")
    return CommandError(f"{thing}: {error.str()} ({error.name()})")


def wait_for(future: Any, thing: str) -> Any:
    """The result of one admin future, within a bound."""
    from confluent_kafka import KafkaException

    try:
        return future.result(timeout=CALL_TIMEOUT_S + 5)
    except KafkaException as error:
        raise failure(error.args[0], thing) from error
    except TimeoutError as error:
        raise CommandError(f"{thing}: no answer in time", ExitCode.UNREACHABLE) from error


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("penstock.librdkafka")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
