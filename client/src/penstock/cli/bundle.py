"""`penstock debug bundle`: what somebody needs who is to understand a cluster from afar, in one file.

All of it comes through gateways. What cannot be had is named in the bundle, with the reason: a cluster that is unwell
gives less, and that is when a bundle is wanted. Secrets are never asked for, so none can be in it.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import secrets
import tarfile
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock import __version__
from penstock.cli.admin import LOOK_TIMEOUT_S, Admin, Where, gateway_option
from penstock.cli.backup import streamed
from penstock.cli.output import note
from penstock.cli.pseudonyms import Pseudonyms
from penstock.connector import PLAINTEXT, Connector
from penstock.errors import CommandError
from penstock.native import open_gateway
from penstock_core.text import harmless

if TYPE_CHECKING:
    from penstock.native import NativeGateway
    from penstock_core.metadata import MetadataImage

BUNDLE_BYTES_MAX: Final = 50 * 1024 * 1024
PART_BYTES_MAX: Final = 16 * 1024 * 1024
PROCESS_TIMEOUT_S: Final = 35.0
FILES: Final = defaultdict(
    lambda: "more.txt",
    settings="settings.json",
    log="log.jsonl",
    stacks="stacks.txt",
    directory="directory.txt",
    quorum="quorum.json",
)
"""Parts of what a process tells, as files."""
EXPLAINED_MAX: Final = 100
"""Partitions whose story is told."""
_SPARE_BYTES: Final = 256 * 1024
"""For the manifest and the archive's own bookkeeping."""

ASKED: Final[tuple[tuple[str, str, str, dict[str, Any]], ...]] = (
    ("quorum", "DescribeQuorum", "controller_pb2", {}),
    ("nodes", "DescribeNodes", "operations_pb2", {}),
    ("operations", "DescribeOperations", "operations_pb2", {"ended": True}),
    ("check", "CheckCluster", "operations_pb2", {}),
    ("capacity", "DescribeCapacity", "operations_pb2", {}),
)
"""(file, method, module of its request, fields of it)."""


@dataclass
class Bundle:
    """What was gathered: JSON documents, texts, bytes, and what could not be had."""

    documents: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """What processes tell of themselves, by file."""
    binaries: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File to write; by default penstock-bundle-TIME.tar.gz here.",
)
@click.option(
    "--anonymous", is_flag=True, help="Other names for topics, groups and hosts, the same everywhere."
)
@click.option(
    "--metrics-interval",
    "interval_s",
    type=click.FloatRange(0, 600),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Between the two readings of all metrics.",
)
@gateway_option
def bundle(
    output: Path | None, anonymous: bool, interval_s: float, gateway: str | None, bootstrap: str
) -> None:
    """One file with what the cluster tells of itself, to look for a fault elsewhere: at most 50 MiB, no secrets, no
    records.

    Versions, settings, metadata, quorum, nodes, operations, findings, the story of partitions that are unwell; and of
    each process its settings, last log lines, stacks, files with their sizes, and metrics twice. What could not be had
    is named in manifest.json.

    \b
    Examples:
      penstock debug bundle
      penstock debug bundle -o fault.tar.gz --anonymous
    """
    output = output or Path(time.strftime("penstock-bundle-%Y%m%d-%H%M%S.tar.gz"))
    where = Where.of(click.get_current_context(), gateway, bootstrap)
    with Admin.at(where) as admin:
        found = gather(admin, interval_s, time.sleep, where.connector)
        asked = admin.address
    if anonymous:
        _rename(found, asked)
        asked = "a gateway"
    left_out = write(
        output, found, {"penstock": __version__, "gateway": asked, "time": time.strftime("%FT%T%z")}
    )
    note(f"{output}: {output.stat().st_size / 1024:.0f} KiB; look through it before you give it away")
    for name, reason in sorted({**found.missing, **left_out}.items()):
        note(f"without {name}: {reason}")


# --- gathering ---------------------------------------------------------------------------------


def gather(
    admin: Admin, interval_s: float, sleep: Callable[[float], None], connector: Connector = PLAINTEXT
) -> Bundle:
    """Everything that the cluster tells. Raises CommandError where no gateway answers."""
    from google.protobuf.json_format import MessageToDict

    found = Bundle()
    admin.gateway()  # nobody there is the end; whatever fails from here on is missing
    image = _metadata(admin, found)
    for name, method, module, fields in ASKED:
        try:
            found.documents[name] = _asked(admin, method, module, fields)
        except CommandError as error:
            found.missing[f"{name}.json"] = error.message
    if image is not None:
        found.documents["versions"] = _versions(image, found.documents.get("quorum"))
        found.documents["settings"] = _settings(image)
        found.documents["metadata"] = [
            MessageToDict(record, preserving_proto_field_name=True) for record in _records(image)
        ]
        _explain(admin, image, found)
    _ask_processes(admin, image, found, connector, lambda: sleep(interval_s))
    found.documents["command"] = {"python": platform.python_version(), "system": platform.platform()}
    return found


def _metadata(admin: Admin, found: Bundle) -> MetadataImage | None:
    from penstock_core.metadata.backup import BadBackup, decode

    try:
        data = b"".join(streamed(admin, secrets=False))
        image: MetadataImage = decode(data, "the gateway's export").image
    except (CommandError, BadBackup) as error:
        found.missing["metadata.backup"] = str(error)
        return None
    found.binaries["metadata.backup"] = data
    return image


def _asked(admin: Admin, method: str, module: str, fields: dict[str, Any]) -> Any:
    from importlib import import_module

    from google.protobuf.json_format import MessageToDict

    request = getattr(import_module(f"penstock_proto.v1.{module}"), f"{method}Request")(**fields)
    response = admin.ask(method, request, LOOK_TIMEOUT_S)
    return MessageToDict(response, preserving_proto_field_name=True)


def _records(image: MetadataImage) -> Iterator[Any]:
    """Of the metadata. Those with secrets are not in an export without them; not written either way."""
    from penstock_core.metadata.backup import SECRET_KINDS

    return (record for record in image.to_records() if record.WhichOneof("record") not in SECRET_KINDS)


def _versions(image: MetadataImage, quorum: Any) -> dict[str, Any]:
    nodes = {f"node-{n.node_id}": (n.version, n.feature_level, n.boot_id) for n in image.nodes.values()}
    gateways = {
        g.gateway_id: (g.record.process.version, g.record.process.feature_level, g.record.process.boot_id)
        for g in image.gateways.values()
    }
    found: dict[str, Any] = {
        name: {"version": version, "feature_level": level, "boot_id": boot_id.hex()}
        for name, (version, level, boot_id) in {**nodes, **gateways}.items()
    }
    if quorum is not None:
        found[f"controller-{quorum.get('controller_id')}"] = quorum.get("process", {})
    return {"processes": found, "features": dict(image.features), "metadata_version": image.version}


def _settings(image: MetadataImage) -> dict[str, Any]:
    return {
        "dynamic": [
            {"resource": kind, "name": name, "settings": dict(values)}
            for (kind, name), values in sorted(image.configs.items())
        ],
        "nodes": [{"node_id": n.node_id, "settings": dict(n.settings)} for n in image.nodes.values()],
    }


def _explain(admin: Admin, image: MetadataImage, found: Bundle) -> None:
    """The story of partitions that nobody leads or that lack a replica."""
    stories = []
    unwell = [
        (topic.name, partition.partition)
        for topic in image.topics.values()
        for partition in topic.partitions.values()
        if partition.leader < 0 or partition.under_replicated
    ]
    for topic, partition in unwell[:EXPLAINED_MAX]:
        try:
            stories.append(
                _asked(admin, "Explain", "operations_pb2", {"topic": topic, "partition": partition})
            )
        except CommandError as error:
            found.missing["explain.json"] = error.message
            return
    found.documents["explain"] = {"unwell": len(unwell), "stories": stories}


# --- each process ------------------------------------------------------------------------------


def _names(image: MetadataImage | None, quorum: Any, nodes: Any) -> list[str]:
    """Controllers and storage nodes by name."""
    members = (quorum or {}).get("members", ())
    told = [each.get("node_id", 0) for each in (nodes or {}).get("nodes", ())]
    node_ids = sorted({*told, *(() if image is None else image.nodes)})
    return [
        *(f"controller-{member['controller_id']}" for member in members),
        *(f"node-{n}" for n in node_ids),
    ]


def _processes(
    admin: Admin, names: list[str], image: MetadataImage | None, connector: Connector, found: Bundle
) -> Iterator[tuple[str, Callable[[tuple[str, ...]], dict[str, str]]]]:
    """Each process by name, and how to ask it for parts; gateways are asked themselves."""
    for name in names:
        yield name, partial(_told, admin.gateway(), name)
    try:
        asked = json.loads(_told(admin.gateway(), "", ("settings",)).get("settings") or "{}")
    except (CommandError, ValueError) as error:
        found.missing["processes/gateway"] = str(error)
        return
    own = str(asked.get("gateway_id", "gateway"))
    yield own, partial(_told, admin.gateway(), "")
    for gateway in () if image is None else image.gateways.values():
        if gateway.gateway_id != own and gateway.record.grpc.port:
            at = f"{gateway.record.grpc.host}:{gateway.record.grpc.port}"
            yield gateway.gateway_id, partial(_told_by, at, connector)


def _told_by(address: str, connector: Connector, parts: tuple[str, ...]) -> dict[str, str]:
    with open_gateway(address, connector) as gateway:
        return _told(gateway, "", parts)


def _told(gateway: NativeGateway, name: str, parts: tuple[str, ...]) -> dict[str, str]:
    """What a process tells of itself, by part. Raises CommandError."""
    import grpc

    from penstock_proto.v1 import operations_pb2

    request = operations_pb2.DescribeProcessRequest(process=name, parts=parts)
    told: dict[str, bytearray] = {}
    try:
        call = gateway.admin.DescribeProcess(request, timeout=PROCESS_TIMEOUT_S, metadata=gateway.metadata())
        for piece in call:
            data = told.setdefault(piece.part, bytearray())
            if len(data) < PART_BYTES_MAX:
                data += piece.data
    except grpc.RpcError as error:
        code, details = error.code().name, " ".join((error.details() or "").split())
        if code == "UNIMPLEMENTED":
            details = details if "older" in details else "it is of an older build and does not tell of itself"
        raise CommandError(harmless(details) or code) from None
    return {part: data.decode(errors="replace") for part, data in told.items()}


def _ask_processes(
    admin: Admin,
    image: MetadataImage | None,
    found: Bundle,
    connector: Connector,
    pause: Callable[[], None],
) -> None:
    """All parts of each process; and its metrics once more, when the pause is over."""
    names = _names(image, found.documents.get("quorum"), found.documents.get("nodes"))
    processes = list(_processes(admin, names, image, connector, found))
    for name, ask in processes:
        try:
            told = ask(())
        except CommandError as error:
            found.missing[f"processes/{name}"] = error.message
            continue
        for part, text in told.items():
            found.texts[
                f"metrics/{name}-1.txt" if part == "metrics" else f"processes/{name}/{FILES[part]}"
            ] = text
    pause()
    for name, ask in processes:
        if f"metrics/{name}-1.txt" in found.texts:
            try:
                found.texts[f"metrics/{name}-2.txt"] = ask(("metrics",)).get("metrics", "")
            except CommandError as error:
                found.missing[f"metrics/{name}-2.txt"] = error.message


# --- other names -------------------------------------------------------------------------------


def _rename(found: Bundle, gateway: str) -> None:
    """Put other names for topics, groups and hosts. The binary metadata go: they are all names."""
    names = Pseudonyms(secrets.token_bytes(32))
    found.binaries.clear()
    names.add_address(gateway)
    for record in found.documents.get("metadata", ()):
        _learn(names, record)
    for member in (found.documents.get("quorum") or {}).get("members", ()):
        names.add_address(member.get("address", ""))
        names.add_address(member.get("grpc_address", ""))
    for key, text in found.texts.items():
        if key.startswith("metrics/"):
            names.learn_metrics(text)
        elif key.endswith("/settings.json"):
            names.learn_settings(_json(text))
        elif key.endswith("/log.jsonl"):
            for line in text.splitlines():
                names.learn_line(_json(line))
        elif key.endswith("/directory.txt") and key.startswith("processes/node-"):
            names.learn_listing(text)
    found.documents = {key: names.document(value) for key, value in found.documents.items()}
    found.texts = {names.text(key): _renamed(names, key, text) for key, text in found.texts.items()}
    found.missing = {names.text(key): names.text(text) for key, text in found.missing.items()}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _renamed(names: Pseudonyms, key: str, text: str) -> str:
    if key.startswith("metrics/"):
        return names.metrics(text)
    if key.endswith(".json"):
        return json.dumps(names.document(_json(text)), indent=1)
    if key.endswith(".jsonl"):
        return "".join(f"{json.dumps(names.document(_json(line)))}\n" for line in text.splitlines())
    return names.text(text)


_CONFIG_KINDS: Final = {"topic": "topic", "group": "group"}
_PLAIN_GATEWAY: Final = re.compile(r"gateway-[0-9]+\Z")
_ACL_KINDS: Final = {2: "topic", 3: "group"}


def _learn(names: Pseudonyms, record: dict[str, Any]) -> None:
    """Names that a record of the metadata holds."""
    for kind, value in record.items():
        if kind == "topic":
            names.add("topic", value.get("name", ""))
        elif kind == "config" and value.get("resource_type") in _CONFIG_KINDS:
            names.add(_CONFIG_KINDS[value["resource_type"]], value.get("resource_name", ""))
        elif kind == "acl":
            resource = _ACL_KINDS.get(value.get("resource_type", 0))
            if resource is not None:
                names.add(resource, value.get("resource_name", ""))
            names.add("host", value.get("host", ""))
        elif kind == "quota":
            names.add("host", value.get("ip", ""))
        elif kind == "gateway" and not _PLAIN_GATEWAY.match(value.get("gateway_id", "")):
            names.add("host", value.get("gateway_id", ""))  # containers name it by their host
        _learn_hosts(names, value)


def _learn_hosts(names: Pseudonyms, value: Any) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            if key == "host" and isinstance(each, str):
                names.add("host", each)
            else:
                _learn_hosts(names, each)
    elif isinstance(value, list):
        for each in value:
            _learn_hosts(names, each)


# --- writing -----------------------------------------------------------------------------------


def write(output: Path, found: Bundle, about: dict[str, Any]) -> dict[str, str]:
    """The archive, for nobody else to read; returns what did not fit, with the reason. Raises CommandError."""
    parts: dict[str, bytes] = {
        f"{name}.json": json.dumps(value, indent=1, default=str).encode()
        for name, value in found.documents.items()
    }
    parts |= {name: text.encode() for name, text in found.texts.items()}
    parts |= found.binaries
    left_out: dict[str, str] = {}
    room = BUNDLE_BYTES_MAX - _SPARE_BYTES
    # Small ones first: what is large is left out where it must be.
    kept: list[tuple[str, bytes]] = []
    for name, data in sorted(parts.items(), key=lambda each: len(each[1])):
        packed = len(zlib.compress(data, 6))
        if packed > room:
            left_out[name] = f"the bundle would be larger than {BUNDLE_BYTES_MAX // 1024**2} MiB"
            continue
        room -= packed
        kept.append((name, data))
    manifest = {
        **about,
        "files": [{"name": name, "bytes": len(data)} for name, data in kept],
        "missing": {**found.missing, **left_out},
    }
    kept.insert(0, ("manifest.json", json.dumps(manifest, indent=1).encode()))
    try:
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
            for name, data in kept:
                member = tarfile.TarInfo(f"penstock-bundle/{name}")
                member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
                archive.addfile(member, io.BytesIO(data))
    except OSError as error:
        raise CommandError(f"{output}: {error.strerror}; give another file by -o") from None
    return left_out


__all__ = ["Bundle", "bundle", "gather", "write"]
