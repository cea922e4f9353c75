"""`penstock feature`: what the cluster has agreed on (KIP-584)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import click

from penstock.cli import wire
from penstock.cli.kafka import bootstrap_option, check_reachable, json_option
from penstock.cli.output import note, print_json, print_table
from penstock.errors import CommandError, ExitCode
from penstock.text import harmless

API_VERSIONS: Final = 18
UPDATE_FEATURES: Final = 57
_API_VERSIONS_VERSION: Final = 4
_UPDATE_VERSION: Final = 2
_TIMEOUT_MS: Final = 30_000
_UPGRADE: Final = 1
_DOWNGRADE: Final = 2
_SUPPORTED, _EPOCH, _FINALIZED = range(3)
"""Tags of ApiVersions."""


@dataclass(frozen=True)
class Feature:
    """One of them."""

    name: str
    level: int
    """What the cluster has; 0 where it has agreed on nothing."""
    lowest: int
    highest: int
    """What the process that was asked knows."""


@click.group("feature")
def COMMAND() -> None:  # noqa: N802 (the name that cli.main looks for)
    """Features: what the cluster has agreed on, and what its processes know.

    metadata.level is raised by `penstock cluster upgrade`, which shows who is in the way. transaction.version is how
    transactions go on: 2 is that of Kafka's newest clients, 0 that of the oldest brokers. Producers change over
    between two transactions, after their next connection.
    """


@COMMAND.command("list")
@bootstrap_option
@json_option
def list_features(bootstrap: str, as_json: bool) -> None:
    """Every feature: its level, and the levels that are known.

    \b
    Examples:
      penstock feature list
      penstock feature list --json | jq '.features[] | select(.name == "transaction.version").level'
    """
    check_reachable(bootstrap)
    epoch, found = read_features(bootstrap)
    if as_json:
        rows = [{"name": f.name, "level": f.level, "lowest": f.lowest, "highest": f.highest} for f in found]
        print_json({"epoch": epoch, "features": rows})
        return
    print_table(
        ["feature", "level", "known"],
        [[harmless(f.name), str(f.level), f"{f.lowest} to {f.highest}"] for f in found],
    )


@COMMAND.command("set")
@click.argument("pairs", metavar="NAME=LEVEL...", nargs=-1, required=True)
@click.option("--downgrade", is_flag=True, help="Lower levels are meant.")
@click.option("--dry-run", is_flag=True, help="Only check that it would be taken.")
@bootstrap_option
def set_features(pairs: tuple[str, ...], downgrade: bool, dry_run: bool, bootstrap: str) -> None:
    """Set levels of features, all of them or none. They count at once.

    \b
    Examples:
      penstock feature set transaction.version=2
      penstock feature set transaction.version=1 --downgrade --dry-run
    """
    wanted = dict(map(_pair, pairs))
    if len(wanted) < len(pairs):
        raise CommandError("a feature is named twice", ExitCode.USAGE)
    check_reachable(bootstrap)
    update_features(bootstrap, wanted, downgrade=downgrade, check=dry_run)
    for name, level in wanted.items():
        note(f"{name} {'may become' if dry_run else 'is now'} {level}")


def _pair(text: str) -> tuple[str, int]:
    name, separator, level = text.partition("=")
    if not separator or not name or not level.isdecimal() or len(level) > 4:
        raise CommandError(f"{text!r}: write it as NAME=LEVEL, e.g. transaction.version=2", ExitCode.USAGE)
    return name, int(level)


def read_features(bootstrap: str) -> tuple[int, list[Feature]]:
    """The epoch of what is agreed on, and every feature by name. Raises CommandError."""
    # The response has the old header in every version, so the request's is written by hand.
    body = b"\x00" + wire.compact("penstock") + wire.compact("1") + b"\x00"
    reader = wire.Reader(wire.ask(bootstrap, API_VERSIONS, body, version=_API_VERSIONS_VERSION))
    (code,) = reader.unpack(">h")
    if code:
        raise CommandError(
            f"{bootstrap} refused with Kafka's error {code}: is its build as new as this one's?"
        )
    for _ in range(reader.count()):
        reader.unpack(">hhh")
        reader.skip_tags()
    reader.unpack(">i")
    epoch, known, agreed = -1, dict[str, tuple[int, int]](), dict[str, int]()
    for tag, data in reader.tags():
        of = wire.Reader(data)
        if tag == _EPOCH:
            (epoch,) = of.unpack(">q")
            continue
        for _ in range(of.count() if tag in (_SUPPORTED, _FINALIZED) else 0):
            name, (first, second) = of.compact() or "", of.unpack(">hh")
            of.skip_tags()
            if tag == _SUPPORTED:
                known[name] = first, second
            else:
                agreed[name] = first
    names = sorted({*known, *agreed})
    return epoch, [Feature(name, agreed.get(name, 0), *known.get(name, (0, 0))) for name in names]


def update_features(
    bootstrap: str, levels: dict[str, int], *, downgrade: bool = False, check: bool = False
) -> None:
    """Set them, or see that they may be set. Raises CommandError."""
    body = struct.pack(">i", _TIMEOUT_MS) + wire.count_of(len(levels))
    for name, level in levels.items():
        body += (
            wire.compact(name) + struct.pack(">hb", level, _DOWNGRADE if downgrade else _UPGRADE) + b"\x00"
        )
    body += struct.pack(">b", check) + b"\x00"
    answer: Any = wire.ask(bootstrap, UPDATE_FEATURES, body, version=_UPDATE_VERSION, flexible=True)
    reader = wire.Reader(answer)
    code, message = reader.unpack(">ih")[1], reader.compact()
    if code:
        raise CommandError(harmless(message or f"the cluster refused with Kafka's error {code}"))
