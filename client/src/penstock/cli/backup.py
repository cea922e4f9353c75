"""`penstock cluster export`, `import` and `recover`: a backup of the metadata, and what to do when they are lost.

A backup comes through a gateway, or from the directory of a controller that does not run. Import makes directories for
controllers and touches nothing that lives. What a backup does not know is on the storage nodes, and comes back by
`recover` (docs/decisions/0057).
"""

from __future__ import annotations

import base64
import binascii
import os
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.admin import PLAN_TIMEOUT_S, Admin, Where, gateway_option
from penstock.cli.kafka import json_option
from penstock.cli.output import note, print_facts, print_json, print_table
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from penstock_core.metadata.backup import BackupHead
    from penstock_proto.v1 import operations_pb2

EXPORT_TIMEOUT_S: Final = 300.0
TELL_WAIT_S: Final = 30.0
"""How long `recover` waits for nodes that have yet to tell what they have."""
_AGAIN_S: Final = 0.5


# --- export ----------------------------------------------------------------------------------


@click.command("export")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Take it from the data_dir of a controller that does not run, instead of a gateway.",
)
@click.option("--with-secrets", is_flag=True, help="Users' credentials and the cluster's secrets too.")
@gateway_option
@json_option
def export_(
    file: Path, data_dir: Path | None, with_secrets: bool, gateway: str | None, bootstrap: str, as_json: bool
) -> None:
    """Write all metadata of one version to FILE: topics, settings, ACLs, quotas, nodes. Not the records.

    A gateway gives what it knows itself. With --data-dir a stopped controller's disk is read; that controller may
    have been behind the others, so take the one whose version is the highest. FILE can be read by you alone.

    \b
    Examples:
      penstock cluster export backup.penstock
      penstock cluster export backup.penstock --with-secrets
      penstock cluster export backup.penstock --data-dir /var/lib/penstock/controller-1
    """
    if data_dir is None:
        with Admin.at(Where.of(click.get_current_context(), gateway, bootstrap)) as admin:
            _write(file, streamed(admin, with_secrets))
    else:
        _write(file, _offline(data_dir, with_secrets))
    head, image = read_backup(file)
    facts = {
        "file": str(file),
        "cluster_id": cluster_id_text(bytes.fromhex(head.cluster_id)),
        "metadata_version": head.metadata_version,
        "metadata_level": head.metadata_level,
        "raft_term": head.raft_term,
        "raft_index": head.raft_index or None,
        "controller_id": head.controller_id or None,
        "topics": len(image.topics),
        "partitions": sum(len(topic.partitions) for topic in image.topics.values()),
        "secrets": head.secrets,
        "bytes": file.stat().st_size,
    }
    _tell(facts, as_json)
    if head.controller_id:
        note(
            f"controller {head.controller_id} knew the log up to entry {head.raft_index}; "
            "another controller may have known more"
        )
    if not head.secrets:
        note("users' passwords are not in it: --with-secrets takes them along")


def streamed(admin: Admin, secrets: bool) -> Iterable[bytes]:
    """The file as a gateway gives it. Raises CommandError."""
    import grpc

    from penstock_proto.v1 import operations_pb2

    gateway = admin.gateway()
    try:
        request = operations_pb2.ExportMetadataRequest(secrets=secrets)
        for piece in gateway.admin.ExportMetadata(
            request, timeout=EXPORT_TIMEOUT_S, metadata=gateway.metadata()
        ):
            yield piece.data
    except grpc.RpcError as error:
        raise admin.problem(error) from None


def _offline(data_dir: Path, secrets: bool) -> Iterable[bytes]:
    from penstock_core.metadata.backup import BackupHead, encode
    from penstock_core.metadata.levels import level_of

    offline = _controller_package()
    try:
        found = offline.read_directory(data_dir)
    except offline.OfflineError as error:
        raise CommandError(str(error)) from None
    head = BackupHead(
        cluster_id=found.image.cluster_id.hex(),
        metadata_version=found.image.version,
        metadata_level=level_of(found.image),
        raft_term=found.term,
        time_ms=int(time.time() * 1000),
        secrets=secrets,
        raft_index=found.index,
        controller_id=found.controller_id,
    )
    yield from encode(found.image, head)


def _write(file: Path, parts: Iterable[bytes]) -> None:
    """Whole or not at all, and for nobody else to read.

    The name of what is not whole yet is of this process alone: two exports to one file do not meet, the last one
    that ends stays.
    """
    try:
        fd, name = tempfile.mkstemp(prefix=f"{file.name}.", suffix=".tmp", dir=file.parent)  # 0600
        tmp = Path(name)
        try:
            with open(fd, "wb") as stream:
                for part in parts:
                    stream.write(part)
                stream.flush()
                os.fsync(stream.fileno())
            tmp.replace(file)
        except BaseException:
            tmp.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandError(f"{error.filename or file}: {error.strerror}; give another FILE") from None


def read_backup(file: Path) -> tuple[BackupHead, Any]:
    """Head and image of a backup. Raises CommandError."""
    from penstock_core.metadata.backup import BadBackup, decode

    try:
        backup = decode(file.read_bytes(), str(file))
    except BadBackup as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror}; give a file of `penstock cluster export`") from None
    return backup.head, backup.image


# --- import ----------------------------------------------------------------------------------


@click.command("import")
@click.argument("file", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option("--empty", is_flag=True, help="There is no backup: begin with nothing but the cluster's id.")
@click.option("--cluster-id", metavar="ID", help="For --empty: cluster.id in meta.properties of any node.")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory in which controller-ID is made for each controller.",
)
@click.option("--controllers", required=True, metavar="ID[,ID...]", help="All controllers of the cluster.")
@json_option
def import_(
    file: Path | None, empty: bool, cluster_id: str | None, out: Path, controllers: str, as_json: bool
) -> None:
    """Make fresh data directories for all controllers, from a backup or from nothing.

    Stop every controller first, put each directory where the data_dir of that controller was, and start them. Storage
    nodes and gateways may go on running. Partitions get leaders once all nodes of the backup have told what they hold;
    `penstock cluster recover` takes what the backup does not know.

    \b
    Examples:
      penstock cluster import backup.penstock --out restored --controllers 1,2,3
      penstock cluster import --empty --cluster-id s1JzEwFzTQ2mQd5cVnT3yA --out restored --controllers 1,2,3
    """
    from penstock_core.metadata import restore

    if empty == (file is not None) or empty != (cluster_id is not None):
        raise CommandError("give FILE, or --empty with --cluster-id", ExitCode.USAGE)
    ids = _ids(controllers)
    offline = _controller_package()
    head, now_ms = None, int(time.time() * 1000)
    if file is not None:
        from penstock_core.metadata.backup import Backup

        head, image = read_backup(file)
        restored = restore.restore(Backup(head, image), now_ms)
    else:
        restored = restore.empty(parse_cluster_id(cluster_id or ""), now_ms)
    paths = {each: out / f"controller-{each}" for each in ids}
    for path in paths.values():
        if path.exists():
            raise CommandError(f"{path} exists already; give another --out, nothing is written over")
    try:
        for each, path in paths.items():
            offline.make_directory(path, each, restored)
    except offline.OfflineError as error:
        raise CommandError(str(error)) from None
    facts = {
        "cluster_id": cluster_id_text(restored.image.cluster_id),
        "metadata_version": restored.image.version,
        "raft_term": restored.term,
        "topics": len(restored.image.topics),
        "directories": [str(path) for path in paths.values()],
        "secrets": head is not None and head.secrets,
    }
    _tell(facts, as_json)
    if head is None:
        note(
            "settings, users, ACLs and quotas are lost; topics and records come back by "
            "`penstock cluster recover --from-nodes` once the storage nodes are there"
        )
        return
    note(f"the backup is of {datetime.fromtimestamp(head.time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC")
    if not head.secrets:
        note("users' passwords are not in the backup: whoever signs in by password has to be added again")


def _controller_package() -> Any:
    try:
        return import_module("penstock_controller.offline")
    except ImportError as error:
        raise CommandError(
            f"controllers' directories need the controller's package ({error.name} is not installed): "
            "pip install 'penstock[local]'"
        ) from None


def _ids(text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words) or len(set(words)) < len(words):
        raise CommandError(f"--controllers {text!r}: give ids such as 1,2,3", ExitCode.USAGE)
    return [int(word) for word in words]


def cluster_id_text(cluster_id: bytes) -> str:
    """As Kafka clients and meta.properties of nodes have it."""
    return base64.urlsafe_b64encode(cluster_id).rstrip(b"=").decode()


def parse_cluster_id(text: str) -> bytes:
    """16 bytes of what meta.properties say: a node's (base64url) or a controller's (hex). Raises a usage error."""
    try:
        found = bytes.fromhex(text) if len(text) == 32 else base64.urlsafe_b64decode(text + "==")
    except (ValueError, binascii.Error):
        found = b""
    if len(found) != 16 or not any(found):
        raise CommandError(
            f"--cluster-id {text!r} is none; take cluster.id of meta.properties in a node's data_dir",
            ExitCode.USAGE,
        )
    return found


# --- recover ---------------------------------------------------------------------------------


@click.command()
@click.option("--adopt", "adopted", metavar="TOPIC", multiple=True, help="This topic; may be given again.")
@click.option("--from-nodes", is_flag=True, help="Every topic that nodes have and the metadata do not know.")
@click.option("--dry-run", is_flag=True, help="Only show what nodes offer.")
@click.option("--yes", is_flag=True, help="Do not ask whether to go on.")
@gateway_option
@json_option
def recover(
    adopted: tuple[str, ...],
    from_nodes: bool,
    dry_run: bool,
    yes: bool,
    gateway: str | None,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Take topics that storage nodes have and the metadata do not know, with their records.

    The replica that is ahead of the others leads. It has every acknowledged record as long as one member of the last
    ISR is among the nodes that run, so start all that can be started first. After an import it also gives leaders to
    partitions whose other nodes never come back. A topic's settings are not with its records.

    \b
    Examples:
      penstock cluster recover --from-nodes --dry-run
      penstock cluster recover --adopt flights
      penstock cluster recover --from-nodes --yes
    """
    if bool(adopted) == from_nodes:
        raise CommandError("give --adopt TOPIC, or --from-nodes", ExitCode.USAGE)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise CommandError(
            "no terminal to ask at: give --yes to go on, or --dry-run to see what is there", ExitCode.USAGE
        )
    with Admin.at(Where.of(click.get_current_context(), gateway, bootstrap)) as admin:
        found = _offered(admin, adopted, dry_run=True)
        good = [topic for topic in found.topics if not topic.error.code]
        if not as_json:
            _show(found.topics)
        if good and not dry_run:
            if not yes and not click.confirm(f"Take {len(good)} topics?", err=True):
                raise CommandError("nothing was changed")
            found = _offered(admin, [topic.name for topic in good], dry_run=False)
    bad = [topic for topic in found.topics if topic.error.code]
    if as_json:
        print_json(
            {"taken": bool(good) and not dry_run, "topics": [_document(topic) for topic in found.topics]}
        )
    elif good and not dry_run:
        note(f"{len(good) - len(bad)} topics are back; of those that were not known the settings are lost")
    elif not good:
        note("nodes offer nothing that can be taken")
    if bad and (not dry_run or adopted):
        raise CommandError("; ".join(topic.error.message for topic in bad))


def _offered(admin: Admin, topics: Iterable[str], *, dry_run: bool) -> operations_pb2.RecoverTopicsResponse:
    from penstock_core.errors import ErrorCode
    from penstock_proto.v1 import operations_pb2

    request = operations_pb2.RecoverTopicsRequest(topics=topics, dry_run=dry_run)
    deadline = time.monotonic() + TELL_WAIT_S
    while True:
        found: operations_pb2.RecoverTopicsResponse = admin.ask("RecoverTopics", request, PLAN_TIMEOUT_S)
        if found.error.code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and time.monotonic() < deadline:
            time.sleep(_AGAIN_S)
            continue
        if found.error.code:
            raise CommandError(found.error.message)
        return found


def _show(topics: Iterable[operations_pb2.RecoveredTopic]) -> None:
    rows = [
        [
            topic.name,
            each.partition,
            each.replicas[0],
            list(each.replicas),
            each.log_end_offset,
            topic.error.message,
        ]
        for topic in topics
        for each in topic.partitions
    ]
    if rows:
        print_table(("topic", "partition", "leader", "replicas", "end offset", "left out because"), rows)


def _document(topic: operations_pb2.RecoveredTopic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id.hex() or None,
        "error": topic.error.message or None,
        "partitions": [
            {
                "partition": each.partition,
                "replicas": list(each.replicas),
                "log_end_offset": each.log_end_offset,
            }
            for each in topic.partitions
        ],
    }


def _tell(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        print_facts([(name.replace("_", " "), value) for name, value in facts.items() if value is not None])
