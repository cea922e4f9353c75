"""Talking to a cluster by Kafka's protocol: clients, deadlines, and errors in plain words.

librdkafka keeps trying for ever and tells its troubles to stderr. Here a broker that
cannot be reached is found out first, by one question within a bound (`reach`); its own log
is switched off; and every error that comes back is turned into one line.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from penstock.cli import reach
from penstock.cli.client_files import client_config_option, client_file_of, own_connector
from penstock.cli.local_gateways import directory_of, directory_option, local_gateways
from penstock.connector import PLAINTEXT, Connector
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

Command = TypeVar("Command", bound=Callable[..., Any])

BOOTSTRAP_DEFAULT: Final = "127.0.0.1:9092"
CALL_TIMEOUT_S: Final = 15.0
PAUSE_S: Final = 0.2
"""Between two tries."""
_OF_CONNECTIONS: Final = (
    "security.",
    "sasl.",
    "ssl.",
    "oauth_cb",
    "socket.",
    "broker.address.",
    "client.dns.",
)
"""What counts of a client file here; how a command produces and consumes it knows itself."""


class Bootstrap(str):
    """Kafka addresses, and how to come in there.

    `hint` says what to do if nobody answers at addresses that nobody named; it is empty for those of a user.
    """

    hint: str
    connector: Connector

    def __new__(cls, addresses: str, hint: str = "", connector: Connector = PLAINTEXT) -> Bootstrap:
        found = super().__new__(cls, addresses)
        found.hint = hint
        found.connector = connector
        return found


def connector_of(bootstrap: str) -> Connector:
    """How to come in at these addresses."""
    return bootstrap.connector if isinstance(bootstrap, Bootstrap) else PLAINTEXT


def _named_or_found(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if ctx.resilient_parsing:
        return value
    chosen = client_file_of(ctx)
    file = chosen.connector.file if chosen is not None else None
    # A file that was named on this line knows better than the environment where its cluster is.
    from_environment = ctx.get_parameter_source(parameter.name or "") is ParameterSource.ENVIRONMENT
    weak = value is None or (from_environment and chosen is not None and chosen.is_on_command_line)
    if chosen is not None and file is not None and file.bootstrap and weak:
        return Bootstrap(
            file.bootstrap, f"{file.path} names it, --bootstrap HOST:PORT another", chosen.connector
        )
    return find_bootstrap(directory_of(ctx), value, chosen.connector if chosen is not None else None)


def find_bootstrap(
    directory: Path, named: str | None = None, connector: Connector | None = None
) -> Bootstrap:
    """The Kafka addresses that were named, or those of the running local cluster in `directory`, or the default.

    Without a connector that of the local cluster is taken for addresses of its own.
    """
    if named is not None:
        return Bootstrap(named, "", connector or own_connector(directory, named) or PLAINTEXT)
    local = local_gateways(directory, "kafka")
    if local.addresses:
        found = ",".join(local.addresses)
        return Bootstrap(found, local.hint, connector or own_connector(directory, found) or PLAINTEXT)
    hint = f"{local.hint}, --bootstrap HOST:PORT names another"
    return Bootstrap(BOOTSTRAP_DEFAULT, hint, connector or PLAINTEXT)


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
    """`--bootstrap`, `--client-config`, and `--dir` of the local cluster that stands in for both."""
    return _bootstrap_alone(client_config_option(directory_option(command)))


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
        **{k: v for k, v in connector_of(bootstrap).librdkafka().items() if k.startswith(_OF_CONNECTIONS)},
        **more,
    }


def kafka_connection(bootstrap: str) -> socket.socket:
    """A connection to the first of the addresses at which a Kafka broker answers.

    Raises UNREACHABLE, in a line that says of each address what is wrong with it.
    """
    problems = []
    connector = connector_of(bootstrap)
    for address in reach.addresses_of(bootstrap, "--bootstrap"):
        found = reach.kafka_connection(address, connector)
        if not isinstance(found, reach.Problem):
            return found
        problems.append(found)
    refused = [problem for problem in problems if problem.is_refusal]
    if refused:
        raise _signed_out(connector, refused)
    if any(problem.speaks is reach.Speaks.TLS for problem in problems) and connector.file is None:
        hint = "give --client-config FILE, which says how to come in (see `penstock --help`)"
    elif isinstance(bootstrap, Bootstrap) and bootstrap.hint:
        hint = bootstrap.hint
    elif any(problem.is_another_port for problem in problems):
        hint = "give --bootstrap the cluster's Kafka address; `penstock local status` shows a local cluster's"
    else:
        # A port that wants TLS says nothing to who speaks none.
        silent = connector.file is None and any(p.speaks is reach.Speaks.NOTHING for p in problems)
        hint = "does it want TLS (--client-config FILE)? " if silent else ""
        hint += "is the cluster up (`penstock local status`), and is --bootstrap right?"
    raise CommandError(
        f"no broker can be reached ({'; '.join(map(str, problems))}); {hint}", ExitCode.UNREACHABLE
    )


def _signed_out(connector: Connector, problems: Sequence[reach.Problem]) -> CommandError:
    file = connector.file
    who = f"user {file.username!r}" if file is not None and file.username else "this client"
    where = f" of {file.path}" if file is not None else ""
    return CommandError(f"{who}{where} cannot sign in ({'; '.join(map(str, problems))}); look at the file")


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

    until_s = time.monotonic() + CALL_TIMEOUT_S
    while True:
        try:
            return (
                client.list_topics(topic, timeout=CALL_TIMEOUT_S)
                if topic
                else client.list_topics(timeout=CALL_TIMEOUT_S)
            )
        except KafkaException as error:
            if not was_lost(error.args[0].code()) or time.monotonic() >= until_s:
                raise failure(error.args[0], f"the cluster at {bootstrap}") from error
        time.sleep(PAUSE_S)


def topic_metadata(client: Any, bootstrap: str, topic: str) -> Any:
    """Metadata of one topic; an unknown one is an error that says how to make it."""
    from confluent_kafka import KafkaError

    found = cluster_metadata(client, bootstrap, topic).topics[topic]
    if found.error is not None and found.error.code() != KafkaError.LEADER_NOT_AVAILABLE:
        raise failure(found.error, f"topic {topic!r}")
    return found


def failure(error: KafkaError, thing: str) -> CommandError:
    """An error of the client library or the broker, in one line that names `thing` and the hint."""
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


def code_of(failed: CommandError) -> int | None:
    """Kafka's code of what `wait_for` said; None of what is no answer of a broker."""
    from confluent_kafka import KafkaError

    said = failed.__cause__.args[:1] if failed.__cause__ is not None else ()
    return next((error.code() for error in said if isinstance(error, KafkaError)), None)


def was_lost(code: int | None) -> bool:
    """Whether nobody knows what became of a request that ended so."""
    from confluent_kafka import KafkaError

    return code in (KafkaError._DESTROY_BROKER, KafkaError._TRANSPORT)


def may_be_asked_again(code: int | None) -> bool:
    """Whether what ended so may go better a moment later: it was lost, or came in the middle of an election."""
    from confluent_kafka import KafkaError

    return was_lost(code) or code in (
        KafkaError._WAIT_COORD,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    )


def _silent_logger() -> logging.Logger:
    logger = logging.getLogger("penstock.librdkafka")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return logger
