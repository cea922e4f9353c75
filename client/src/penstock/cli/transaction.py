"""`penstock transaction`."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, Final

import click

from penstock.cli import transaction_wire as tw
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_facts, print_json, print_table
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

MAX_TIMEOUT_S: Final = 900
"""As transaction.max.timeout.ms of the nodes, if nothing else is set."""
GRACE_S: Final = 300
"""How much longer than that a transaction may be under way before it is looked at (Kafka: TransactionsCommand)."""


@click.group("transaction")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Transactions: who has some, what hangs, and an end for that.

    A transaction hangs when it is open in a partition and its coordinator does not know it: nobody will end it, and
    readers of committed records wait in front of it.
    """


@COMMAND.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only ids in that state, e.g. Ongoing. May be repeated."
)
@click.option("--producer-id", "producer_ids", multiple=True, type=click.IntRange(0), help="Only these.")
@click.option("--longer-than", type=click.IntRange(0), metavar="SECONDS", help="Only transactions that old.")
@click.option("--pattern", help="Only ids that match this regular expression (RE2), as a whole.")
@bootstrap_option
@json_option
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than: int | None,
    pattern: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Transactional ids, and what state each is in.

    \b
    Examples:
      penstock transaction list
      penstock transaction list --state Ongoing --state PrepareCommit --longer-than 60
      penstock transaction list --pattern 'etl-.*' --json
    """
    check_reachable(bootstrap)
    found, unknown = tw.list_transactions(
        tw.read_cluster(bootstrap),
        states=states,
        producer_ids=producer_ids,
        longer_than_ms=-1 if longer_than is None else longer_than * 1_000,
        pattern=pattern,
    )
    if unknown:
        raise CommandError(
            f"no such state: {', '.join(map(harmless, unknown))}; there are Empty, Ongoing, PrepareCommit, "
            "PrepareAbort, CompleteCommit and CompleteAbort",
            ExitCode.USAGE,
        )
    if as_json:
        rows = [
            {"transactional_id": f.transactional_id, "producer_id": f.producer_id, "state": f.state}
            for f in found
        ]
        print_json({"transactions": rows})
        return
    print_table(
        ["transactional id", "producer id", "state"],
        [[harmless(f.transactional_id), str(f.producer_id), f.state] for f in found],
    )


@COMMAND.command("describe")
@click.argument("names", metavar="ID...", nargs=-1, required=True)
@bootstrap_option
@json_option
def describe(names: tuple[str, ...], bootstrap: str, as_json: bool) -> None:
    """Transactional ids as their coordinators know them: state, producer, age, partitions.

    \b
    Examples:
      penstock transaction describe payments-1
      penstock transaction describe payments-1 payments-2 --json
    """
    check_reachable(bootstrap)
    found = tw.describe_transactions(tw.read_cluster(bootstrap), dict.fromkeys(names))
    missing = {name: code for name, code in found.items() if isinstance(code, int)}
    known = [each for each in found.values() if not isinstance(each, int)]
    if as_json:
        print_json(
            {
                "transactions": [_facts(each) for each in known],
                "failed": {name: tw.said(code) for name, code in missing.items()},
            }
        )
    else:
        for each in known:
            _print(each)
    if missing:
        name, code = next(iter(missing.items()))
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CommandError(f"transactional id {harmless(name)!r}: {tw.said(code)}{more}")


def _age_s(start_ms: int) -> float | None:
    return None if start_ms < 0 else max(0.0, time.time() - start_ms / 1000)


def _facts(each: tw.Described) -> dict[str, Any]:
    is_open = each.state in ("Ongoing", "PrepareCommit", "PrepareAbort")
    return {
        "transactional_id": each.transactional_id,
        "state": each.state,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "timeout_ms": None if each.timeout_ms == tw.NO_TIMEOUT_MS else each.timeout_ms,
        "start_ms": each.start_ms if is_open and each.start_ms >= 0 else None,
        "partitions": [{"topic": topic, "partition": number} for topic, number in each.partitions],
    }


def _print(each: tw.Described) -> None:
    facts = _facts(each)
    age_s = None if facts["start_ms"] is None else _age_s(facts["start_ms"])
    timeout_ms = facts["timeout_ms"]
    print_facts(
        [
            ("transactional id", harmless(each.transactional_id)),
            ("state", each.state),
            ("producer", f"{each.producer_id}, epoch {each.producer_epoch}"),
            ("timeout", "none: another system decides" if timeout_ms is None else f"{timeout_ms / 1000:g} s"),
            ("open for", "-" if age_s is None else f"{age_s:.0f} s"),
            ("partitions", ", ".join(f"{harmless(t)}-{n}" for t, n in each.partitions) or "-"),
        ]
    )


@COMMAND.command("find-hanging")
@click.option("--topic", "-t", help="Only in this topic; default: in all.")
@click.option("--partition", "-p", type=click.IntRange(0), help="Only in this partition of it.")
@click.option(
    "--max-timeout",
    "max_timeout_s",
    type=click.IntRange(0),
    default=MAX_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help=f"The longest timeout that producers may have; what has written within {GRACE_S} s more does not hang.",
)
@bootstrap_option
@json_option
def find_hanging(
    topic: str | None, partition: int | None, max_timeout_s: int, bootstrap: str, as_json: bool
) -> None:
    """Transactions that are open in a partition and that no coordinator knows.

    \b
    Examples:
      penstock transaction find-hanging
      penstock transaction find-hanging --topic payments --partition 3 --json
    """
    if partition is not None and topic is None:
        raise CommandError("--partition goes with --topic: say of which topic", ExitCode.USAGE)
    check_reachable(bootstrap)
    cluster = tw.read_cluster(bootstrap, topic)
    places = [place for place in cluster.leaders if partition is None or place[1] == partition]
    if not places and partition is not None:
        raise CommandError(f"topic {topic!r} has no partition {partition}", ExitCode.USAGE)
    found, failed = tw.open_producers(cluster, places)
    now_ms = time.time() * 1000
    old = [each for each in found if now_ms - each.last_ms > (max_timeout_s + GRACE_S) * 1_000]
    hanging = [each for each in old if _known_as(cluster, each) is None]
    if as_json:
        print_json(
            {
                "hanging": [_row(each, now_ms) for each in hanging],
                "not_looked_at": [{"topic": t, "partition": n} for t, n in failed],
            }
        )
    else:
        print_table(
            ["topic", "partition", "producer", "epoch", "first offset", "idle"],
            [
                [
                    harmless(each.topic),
                    str(each.partition),
                    str(each.producer_id),
                    str(each.producer_epoch),
                    str(each.start_offset),
                    f"{(now_ms - each.last_ms) / 1000:.0f} s",
                ]
                for each in hanging
            ],
        )
    if failed:
        (place, code), *_ = failed.items()
        raise CommandError(
            f"{len(failed)} partitions were not looked at, e.g. {harmless(place[0])}-{place[1]}: {tw.said(code)}"
        )
    if hanging and not as_json:
        note("end one with `penstock transaction abort TOPIC PARTITION --start-offset OFFSET`")


def _row(each: tw.OpenProducer, now_ms: float) -> dict[str, Any]:
    return {
        "topic": each.topic,
        "partition": each.partition,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "coordinator_epoch": each.coordinator_epoch,
        "start_offset": each.start_offset,
        "idle_ms": round(now_ms - each.last_ms),
    }


def _known_as(cluster: tw.Cluster, each: tw.OpenProducer) -> tw.Described | None:
    """The transaction of a coordinator that a producer's open one is; None: nobody will end it."""
    listed, _ = tw.list_transactions(cluster, producer_ids=[each.producer_id])
    described = tw.describe_transactions(cluster, [one.transactional_id for one in listed])
    for name, one in described.items():
        if isinstance(one, int):
            if one == tw.NOT_FOUND:
                continue
            raise CommandError(f"transactional id {harmless(name)!r}: {tw.said(one)}")
        if one.producer_id == each.producer_id and (each.topic, each.partition) in one.partitions:
            return one
    return None


@COMMAND.command("abort")
@click.argument("topic")
@click.argument("partition", type=click.IntRange(0))
@click.option(
    "--start-offset", type=click.IntRange(0), required=True, help="Offset of its first record there."
)
@click.option("--yes", is_flag=True, help="Do it. Without this only what would be done is told.")
@click.option("--dry-run", is_flag=True, help="Only tell what would be done; so it is without --yes.")
@click.option("--force", is_flag=True, help="Also one that its coordinator knows and may yet commit.")
@bootstrap_option
@json_option
def abort(
    topic: str,
    partition: int,
    start_offset: int,
    yes: bool,
    dry_run: bool,
    force: bool,
    bootstrap: str,
    as_json: bool,
) -> None:
    """End a transaction that hangs: a marker in its partition says that it is aborted.

    Readers of committed records go on behind it. One that its coordinator knows is refused: it ends by its producer,
    or by its timeout, and a marker by hand may contradict what is decided then.

    \b
    Examples:
      penstock transaction abort payments 3 --start-offset 4711
      penstock transaction abort payments 3 --start-offset 4711 --yes
    """
    check_reachable(bootstrap)
    cluster = tw.read_cluster(bootstrap, topic)
    found, failed = tw.open_producers(cluster, [(topic, partition)])
    if failed:
        raise CommandError(f"{topic}-{partition}: {tw.said(next(iter(failed.values())))}")
    chosen = next((each for each in found if each.start_offset == start_offset), None)
    if chosen is None:
        begun = Counter(each.start_offset for each in found)
        hint = f"open ones begin at {', '.join(map(str, sorted(begun)))}" if begun else "there is no open one"
        raise CommandError(f"no transaction of {topic}-{partition} begins at offset {start_offset}: {hint}")
    known = _known_as(cluster, chosen)
    if known is not None and not force:
        raise CommandError(
            f"the transaction is {known.state} of transactional id {harmless(known.transactional_id)!r}: its "
            "coordinator will end it; --force ends it here all the same"
        )
    is_done = yes and not dry_run
    code = tw.abort(cluster, chosen) if is_done else 0
    if as_json:
        print_json({"aborted": is_done and not code, "transaction": _row(chosen, time.time() * 1000)})
    if code:
        raise CommandError(f"{topic}-{partition}: {tw.said(code)}")
    if not as_json:
        producer = f"producer {chosen.producer_id}, epoch {chosen.producer_epoch}"
        what = f"the transaction of {producer}, in {topic}-{partition}"
        note(f"{what} is aborted" if is_done else f"would abort {what}; --yes does it")
