"""`penstock spark sink`: what exactly-once sinks have decided last, and their open stages (decision 0073)."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.admin import Where, gateway_option
from penstock.cli.kafka import CALL_TIMEOUT_S, PAUSE_S, json_option
from penstock.cli.output import print_facts, print_json, print_table
from penstock.errors import CommandError, ExitCode
from penstock.native import NativeGateway, open_gateway
from penstock.text import harmless

if TYPE_CHECKING:
    from penstock_proto.v1 import common_pb2, sinks_pb2

_PASSING: Final = frozenset({5, 6, 7, 14, 15, 16})
"""Kafka's error codes of a coordinator that is moving."""


@click.group("sink")
def sink() -> None:
    """Exactly-once sinks: what each has decided last, and its open stages."""


@sink.command("list")
@gateway_option
@json_option
def list_sinks(gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """All sinks that you may describe.

    A state is done (all rows of the last unit are visible), ending (they become so), or open (nothing is decided yet).

    \b
    Examples:
      penstock spark sink list
      penstock spark sink list --json
    """
    found = [_document(each) for each in _ask(gateway, bootstrap, "ListSinks").sinks]
    for each in found:
        del each["rows"]  # a listing doesn't tell them
    if as_json:
        print_json({"sinks": found})
        return
    print_table(
        ["sink", "query", "epoch", "state", "open stages"],
        [
            [
                harmless(each["sink"]),
                harmless(each["query_id"] or "-"),
                "-" if each["epoch"] is None else str(each["epoch"]),
                each["state"],
                str(len(each["open"])),
            ]
            for each in sorted(found, key=lambda each: str(each["sink"]))
        ],
    )


@sink.command("describe")
@click.argument("name", metavar="ID")
@gateway_option
@json_option
def describe(name: str, gateway: str | None, bootstrap: str, as_json: bool) -> None:
    """A sink: the query that it belongs to, the last unit (micro-batch or version), its rows, and open stages.

    \b
    Examples:
      penstock spark sink describe flights-copy
      penstock spark sink describe flights-copy --json
    """
    answer = _ask(gateway, bootstrap, "DescribeSink", name)
    if not answer.HasField("sink"):
        raise CommandError(
            f"no sink {harmless(name)!r} has decided anything or has an open stage; see `penstock spark sink list`"
        )
    found = _document(answer.sink)
    if as_json:
        print_json(found)
        return
    print_facts(
        [
            ("sink", harmless(found["sink"])),
            ("query", harmless(found["query_id"] or "-")),
            ("epoch", "-" if found["epoch"] is None else str(found["epoch"])),
            ("state", found["state"]),
            ("decided", _time_text(found["decided_at_ms"])),
            ("rows of it", str(sum(each["rows"] for each in found["rows"]))),
            ("open stages", str(len(found["open"]))),
        ]
    )
    if found["open"]:
        print_table(
            ["stage", "query", "epoch", "producer", "open since"],
            [
                [
                    harmless(each["transactional_id"]),
                    harmless(each["query_id"]),
                    str(each["epoch"]),
                    f"{each['producer_id']}, epoch {each['producer_epoch']}",
                    _time_text(each["started_at_ms"]),
                ]
                for each in found["open"]
            ],
        )


def _ask(gateway: str | None, bootstrap: str, call: str, name: str = "") -> Any:
    """Raises CommandError."""
    where = Where.of(click.get_current_context(), gateway, bootstrap)
    address = where.find()
    from penstock_proto.v1 import sinks_pb2

    request = sinks_pb2.DescribeSinkRequest(sink=name) if name else sinks_pb2.ListSinksRequest()
    until_s = time.monotonic() + CALL_TIMEOUT_S
    with open_gateway(address, where.connector) as opened:
        while True:
            answer = _call(opened, address, call, request)
            if not answer.error.code:
                return answer
            if answer.error.code not in _PASSING or time.monotonic() >= until_s:
                raise _refused(name, answer.error)
            time.sleep(PAUSE_S)


def _call(opened: NativeGateway, address: str, call: str, request: Any) -> Any:
    import grpc

    try:
        return getattr(opened.stub, call)(request, timeout=CALL_TIMEOUT_S, metadata=opened.metadata())
    except grpc.RpcError as error:
        refused: Any = error
        if refused.code() is grpc.StatusCode.UNIMPLEMENTED:
            raise CommandError(
                f"gateway {address} is of an older build, which does not know of exactly-once writing; upgrade it"
            ) from None
        details = harmless(" ".join((refused.details() or refused.code().name).split()))
        raise CommandError(f"gateway {address}: {details}", ExitCode.UNREACHABLE) from None


def _refused(name: str, error: common_pb2.Error) -> CommandError:
    text = harmless(error.message or f"Kafka error {error.code}")
    return CommandError(f"sink {harmless(name)!r}: {text}" if name else text)


def _document(state: sinks_pb2.SinkState) -> dict[str, Any]:
    decided = state.HasField("last")
    return {
        "sink": state.sink,
        "query_id": state.last.query if decided else None,
        "epoch": state.last.epoch if decided else None,
        "state": "open" if not decided else "ending" if state.ending_stages else "done",
        "decided_at_ms": state.decided_at_ms if decided else None,
        "once": state.once,
        "rows": [{"topic": r.topic, "partition": r.partition, "rows": r.rows} for r in state.rows],
        "open": [
            {
                "transactional_id": stage.triple.transactional_id,
                "producer_id": stage.triple.producer_id,
                "producer_epoch": stage.triple.producer_epoch,
                "query_id": stage.unit.query,
                "epoch": stage.unit.epoch,
                "started_at_ms": stage.started_at_ms if stage.started_at_ms >= 0 else None,
            }
            for stage in state.open
        ],
    }


def _time_text(time_ms: int | None) -> str:
    if time_ms is None:
        return "-"
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%SZ}"
