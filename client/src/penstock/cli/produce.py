"""`penstock produce`: lines in, acknowledged records out.

Rules: idempotent and acks=all always: a line that was counted as sent is on every
in-sync replica, once. Lines that could not be delivered are counted, the first failure
is told, and the exit code is 1. Ctrl-C delivers what was read so far. With `--receipt`
lines go through the gateway's gRPC API instead: one receipt per batch, nothing sent twice.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.core import ParameterSource

from penstock.cli.kafka import (
    bootstrap_option,
    check_reachable,
    client_config,
    connector_of,
    failure,
    topic_metadata,
)
from penstock.cli.local_gateways import directory_of
from penstock.cli.output import console, note, print_json
from penstock.connector import Connector
from penstock.errors import CommandError, ExitCode
from penstock.interrupts import one_interrupt
from penstock.receipts import Record, produce_with_receipts

if TYPE_CHECKING:
    from confluent_kafka import Producer

POLL_EVERY_RECORDS = 512
QUEUE_RECORDS_MAX = 200_000

Advance = Callable[[int], None]


@dataclass
class Tally:
    """What became of the lines: `failed` are those that no broker acknowledged."""

    read: int = 0
    acked: int = 0
    failed: int = 0
    value_bytes: int = 0
    first_failure: str = ""

    def delivered(self, error: Any, _message: Any) -> None:
        """Delivery report of one record."""
        if error is None:
            self.acked += 1
        else:
            self.fail(str(error.str()))

    def fail(self, reason: str) -> None:
        self.failed += 1
        self.first_failure = self.first_failure or reason


@click.command("produce")
@click.argument("topic")
@click.option(
    "--file", "-f", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Read this, not stdin."
)
@click.option(
    "--key-separator", "-K", metavar="TEXT", help="Split each line at the first TEXT into key and value."
)
@click.option("--partition", "-p", type=click.IntRange(min=0), help="Send all to this partition.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
)
@click.option(
    "--timeout",
    "timeout_s",
    type=click.IntRange(min=1),
    default=60,
    show_default=True,
    help="Seconds until a record that no broker acknowledges counts as failed.",
)
@click.option(
    "--receipt",
    is_flag=True,
    help="Say for each batch which replicas hold it and which have flushed it (by gRPC).",
)
@click.option(
    "--gateway",
    envvar="PENSTOCK_GATEWAY",
    metavar="HOST:PORT[,...]",
    help="gRPC address of a gateway, for --receipt. Also PENSTOCK_GATEWAY. By default one of the cluster "
    "at --bootstrap if that is given, else of the local cluster in --dir, else 127.0.0.1:9094.",
)
@click.option(
    "--acks",
    type=click.Choice(["all", "1"]),
    default="all",
    show_default=True,
    help="With --receipt: whose ack counts, every in-sync replica's or the leader's alone.",
)
@bootstrap_option
@click.option("--json", "as_json", is_flag=True, help="Print the tally, or each receipt, as JSON on stdout.")
@click.pass_context
def COMMAND(  # noqa: N802 (the name that cli.main looks for)
    ctx: click.Context,
    topic: str,
    file: Path | None,
    key_separator: str | None,
    partition: int | None,
    compression: str,
    timeout_s: int,
    receipt: bool,
    gateway: str | None,
    acks: str,
    bootstrap: str,
    as_json: bool,
) -> int:
    """Send lines to a topic, one record per line, acknowledged by every in-sync replica.

    \b
    Examples:
      seq 1000 | penstock produce numbers
      penstock produce flights --file flights.jsonl
      printf 'AA|first\\nUA|second\\n' | penstock produce flights --key-separator '|'
      echo 'paid' | penstock produce orders --receipt
    """
    if key_separator == "":
        raise CommandError("--key-separator is empty: give the text between key and value", ExitCode.USAGE)
    if receipt:
        if compression != "none":
            raise CommandError("--receipt takes no --compression: batches go as they are", ExitCode.USAGE)
        from penstock.cli.gateways import find_gateway

        given = ctx.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT
        connector = connector_of(bootstrap)
        found = find_gateway(gateway, bootstrap if given else None, directory_of(ctx), connector)
        source = _source_of_a_thread(file)
        lines = _records(source, key_separator)
        _tell_receipts(found, topic, partition or 0, lines, acks, timeout_s, as_json, connector)
        source.close()
        return ExitCode.OK
    if acks != "all":
        raise CommandError("--acks 1 goes with --receipt; without it, acks is all", ExitCode.USAGE)
    return _send_all(topic, file, key_separator, partition, compression, timeout_s, bootstrap, as_json)


def _send_all(
    topic: str,
    file: Path | None,
    key_separator: str | None,
    partition: int | None,
    compression: str,
    timeout_s: int,
    bootstrap: str,
    as_json: bool,
) -> int:
    from confluent_kafka import Producer

    check_reachable(bootstrap)
    producer = Producer(
        client_config(
            bootstrap,
            **{
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 5,
                "batch.size": 1_000_000,
                "compression.type": compression,
                "message.timeout.ms": timeout_s * 1000,
                "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
            },
        )
    )
    _check_partition(producer, bootstrap, topic, partition)
    tally = Tally()
    begun = time.monotonic()
    interrupted = False
    send = _sender(producer, topic, partition, key_separator, tally)
    with _source(file) as source, _progress(file) as advance:
        try:
            with one_interrupt():
                for line in source:
                    send(line)
                    advance(len(line))
        except KeyboardInterrupt:
            interrupted = True
        undelivered = producer.flush(timeout_s + 5)
    for _ in range(undelivered):
        tally.fail("no acknowledgement in time")
    _tell(topic, tally, time.monotonic() - begun, as_json)
    if interrupted:
        return ExitCode.INTERRUPTED
    if tally.failed:
        raise CommandError(
            f"topic {topic!r}: {tally.failed:,} of {tally.read:,} records were not delivered; "
            f"the first: {tally.first_failure}"
        )
    return ExitCode.OK


def _sender(
    producer: Producer, topic: str, partition: int | None, key_separator: str | None, tally: Tally
) -> Callable[[bytes], None]:
    """A function that sends one line. Bounded: a full queue waits for acknowledgements."""
    from confluent_kafka import KafkaException

    separator = key_separator.encode() if key_separator is not None else None
    more: dict[str, Any] = {} if partition is None else {"partition": partition}
    report = tally.delivered

    def send(line: bytes) -> None:
        value = line.removesuffix(b"\n")
        key = None
        tally.read += 1
        if separator is not None:
            key, found, value = value.partition(separator)
            if not found:
                tally.fail(f"line {tally.read} has no separator {key_separator!r}")
                return
        tally.value_bytes += len(value)
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=report, **more)
                break
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                tally.fail(f"line {tally.read}: {error.args[0].str()}")
                return
        if tally.read % POLL_EVERY_RECORDS == 0:
            producer.poll(0)

    return send


def _records(source: BinaryIO, key_separator: str | None) -> Iterator[Record]:
    separator = key_separator.encode() if key_separator is not None else None
    for number, line in enumerate(source, 1):
        value = line.removesuffix(b"\n")
        if separator is None:
            yield None, value
            continue
        key, found, value = value.partition(separator)
        if not found:
            raise CommandError(f"line {number} has no separator {key_separator!r}")
        yield key, value


def _tell_receipts(
    gateway: str,
    topic: str,
    partition: int,
    lines: Iterator[Record],
    acks: str,
    timeout_s: int,
    as_json: bool,
    connector: Connector,
) -> None:
    acks_number = -1 if acks == "all" else 1
    for got in produce_with_receipts(
        gateway,
        topic,
        partition,
        lines,
        acks=acks_number,
        timeout_ms=timeout_s * 1000,
        connector=connector,
    ):
        if as_json:
            click.echo(json.dumps(asdict(got)))
            continue
        last = got.base_offset + got.records - 1
        offsets = f"offset {last}" if got.records == 1 else f"offsets {got.base_offset}-{last}"
        click.echo(
            f"{topic}-{partition} {offsets}, leader epoch {got.leader_epoch}:"
            f" held by {_nodes(got.held_by)}, flushed by {_nodes(got.flushed_by)}"
        )


def _nodes(ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, ids)) or "nobody"


def _check_partition(producer: Producer, bootstrap: str, topic: str, partition: int | None) -> None:
    from confluent_kafka import KafkaError

    found = topic_metadata(producer, bootstrap, topic)
    if partition is not None and partition not in found.partitions:
        raise failure(KafkaError(KafkaError._UNKNOWN_PARTITION), f"topic {topic!r}")


@contextmanager
def _source(file: Path | None) -> Iterator[BinaryIO]:
    if file is None:
        _invite()
        yield sys.stdin.buffer
        return
    with file.open("rb") as source:
        yield source


def _source_of_a_thread(file: Path | None) -> BinaryIO:
    """The lines, for gRPC's thread, which may still wait for one when the command has failed.

    So it is closed only once all was read: to close a file that a thread waits at would wait with it.
    And it is not `sys.stdin.buffer`, whose lock the interpreter takes at its end, or aborts.
    """
    if file is not None:
        return file.open("rb")
    _invite()
    return os.fdopen(os.dup(sys.stdin.fileno()), "rb")


def _invite() -> None:
    if sys.stdin.isatty():
        note("type a line for each record, Ctrl-D to end")


@contextmanager
def _progress(file: Path | None) -> Iterator[Advance]:
    """A bar by bytes read, only where somebody watches: stderr is a terminal and stdin is none."""
    if not sys.stderr.isatty() or (file is None and sys.stdin.isatty()):
        yield lambda _count: None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("sent"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("sent", total=file.stat().st_size if file else None)
        pending = 0

        def advance(count: int) -> None:
            nonlocal pending
            pending += count
            if pending >= 65_536:
                progress.advance(task, pending)
                pending = 0

        yield advance


def _tell(topic: str, tally: Tally, took_s: float, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "topic": topic,
                "records": tally.acked,
                "failed": tally.failed,
                "bytes": tally.value_bytes,
                "seconds": round(took_s, 3),
            }
        )
        return
    rate = tally.acked / took_s if took_s > 0 else 0
    note(f"{tally.acked:,} records acknowledged in {took_s:.2f} s ({rate:,.0f}/s), {tally.failed:,} failed")
