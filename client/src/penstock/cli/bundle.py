"""`penstock debug bundle`: what somebody needs who is to understand a cluster from afar, in one file.

All of it comes through a gateway. What cannot be had is named in the bundle, with the reason: a cluster that is unwell
gives less, and that is when a bundle is wanted. Secrets are never asked for, so none can be in it.
"""

from __future__ import annotations

import base64
import io
import json
import os
import platform
import secrets
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
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

if TYPE_CHECKING:
    from penstock_core.metadata import MetadataImage
    from penstock_proto.v1.common_pb2 import Endpoint

BUNDLE_BYTES_MAX: Final = 50 * 1024 * 1024
METRICS_BYTES_MAX: Final = 16 * 1024 * 1024
METRICS_TIMEOUT_S: Final = 10.0
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
    """What was gathered: JSON documents, pages of metrics, bytes, and what could not be had."""

    documents: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, str] = field(default_factory=dict)
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
    help="Between the two readings of the gateways' metrics.",
)
@gateway_option
def bundle(
    output: Path | None, anonymous: bool, interval_s: float, gateway: str | None, bootstrap: str
) -> None:
    """One file with what the cluster tells of itself, to look for a fault elsewhere: at most 50 MiB, no secrets, no
    records.

    Versions, settings, metadata, quorum, nodes, operations, findings, the story of partitions that are unwell, and the
    gateways' metrics twice. What could not be had is named in manifest.json.

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
    targets = _metrics_targets(image)
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
    for number in (1, 2):
        if number == 2 and found.metrics:
            sleep(interval_s)
        for gateway_id, at in targets.items():
            _scrape(found, f"metrics/{gateway_id}-{number}.txt", at, connector)
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


def _metrics_targets(image: MetadataImage | None) -> dict[str, Endpoint]:
    """Where the gateways' metrics are."""
    if image is None:
        return {}
    return {
        gateway.gateway_id: gateway.record.http
        for gateway in image.gateways.values()
        if gateway.record.http.port
    }


def _scrape(found: Bundle, name: str, at: Endpoint, connector: Connector) -> None:
    file, context = connector.file, connector.context
    headers = {}
    if context is not None and file is not None and file.password:
        said = base64.b64encode(f"{file.username}:{file.password}".encode()).decode()
        headers["Authorization"] = f"Basic {said}"
    http = (
        HTTPConnection(at.host, at.port, timeout=METRICS_TIMEOUT_S)
        if context is None
        else HTTPSConnection(at.host, at.port, timeout=METRICS_TIMEOUT_S, context=context)
    )
    try:
        http.request("GET", "/metrics", headers=headers)
        answer = http.getresponse()
        if answer.status != HTTPStatus.OK:
            raise ValueError(f"HTTP {answer.status} {answer.reason}")
        found.metrics[name] = answer.read(METRICS_BYTES_MAX).decode(errors="replace")
    except (HTTPException, OSError, ValueError) as error:
        found.missing[name] = f"the gateway's HTTP port does not give its metrics to everybody ({error})"
    finally:
        http.close()


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
    for text in found.metrics.values():
        names.learn_metrics(text)
    found.documents = {key: names.document(value) for key, value in found.documents.items()}
    found.metrics = {names.text(key): names.metrics(text) for key, text in found.metrics.items()}
    found.missing = {names.text(key): names.text(text) for key, text in found.missing.items()}


_CONFIG_KINDS: Final = {"topic": "topic", "group": "group"}
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
    parts |= {name: text.encode() for name, text in found.metrics.items()}
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
