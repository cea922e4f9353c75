"""Operating a cluster: what people ask of the controllers, the backup that they bring, and the file of events."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Final

from google.protobuf.message import DecodeError

from fuzz.peer_targets import may_be_written, metadata_records
from fuzz.target import Target, expect
from penstock_controller.state.controllers import Connected, QuorumView
from penstock_controller.state.generation import Generated
from penstock_controller.state.history import frames
from penstock_controller.state.operations.engine.kinds import CONTROLLER_REPLACE
from penstock_controller.state.operations.engine.start import control_operation, start_operation
from penstock_controller.state.operations.plans.admission import plan_admission, start_admission
from penstock_controller.state.operations.plans.plan import PlanView, plan_steps
from penstock_controller.state.operations.plans.upgrade import UPGRADE, plan_upgrade, start_upgrade
from penstock_controller.state.operations.processes import ControllerSeen, QuorumSeen
from penstock_core.errors import PenstockError
from penstock_core.ids import NodeId
from penstock_core.limits import FEATURE_LEVEL
from penstock_core.metadata import MetadataImage, backup
from penstock_core.metadata.levels import require_records
from penstock_core.operation_documents import operation_document, plan_document
from penstock_proto.v1 import common_pb2, metadata_pb2
from penstock_proto.v1 import operations_pb2 as api
from penstock_runtime.turns import all_at_once
from support.moved_cluster import MovedCluster

NOW_MS: Final = 1_700_000_000_000

# -- requests of the Admin service ---------------------------------------------------------------

_VIEW: Final = QuorumView(
    1,
    frozenset({1, 2, 3}),
    {1: Connected(b"1" * 16, True), 2: Connected(b"2" * 16, True), 3: Connected(b"n" * 16, False)},
)
_SEEN: Final = QuorumSeen(frozenset({1, 2, 3}), 1, {i: ControllerSeen(b"b" * 16) for i in (1, 2, 3)})
_PROCESS: Final = common_pb2.ProcessInfo(version="1", feature_level=FEATURE_LEVEL)


@cache
def _cluster() -> MovedCluster:
    """Five nodes, two topics, and an operation under way."""
    spread = {("t", n): (n % 4 + 1, (n + 1) % 4 + 1) for n in range(4)} | {("u", 0): (1,)}
    cluster = MovedCluster(spread, node_count=5)
    for node_id in cluster.image.nodes:
        report = api.NodeReport(
            disk_total_bytes=1 << 40, disk_free_bytes=1 << 39, first_of_all=True, last_of_all=True
        )
        cluster.reports.take(node_id, cluster.image.nodes[node_id].node_epoch, report, 0)
    records = [
        metadata_pb2.MetadataRecord(
            controller=metadata_pb2.ControllerRecord(controller_id=i, directory_id=bytes([48 + i]) * 16)
        )
        for i in (1, 2, 3)
    ]
    running = metadata_pb2.OperationRecord(
        operation_id=cluster.image.version + 1,
        kind="rebalance",
        state=metadata_pb2.OPERATION_STATE_RUNNING,
        moves_total=1,
    )
    cluster._apply([*records, metadata_pb2.MetadataRecord(operation=running)])
    return cluster


def _alive(_node_id: NodeId) -> bool:
    return True


def _plan(data: bytes) -> None:
    """A StartOperationRequest: planned, planned again, begun where it may be."""
    request = api.StartOperationRequest.FromString(data)
    cluster, kind = _cluster(), request.request.kind
    image, ctx = cluster.image, cluster.ctx
    made: Generated[api.StartOperationResponse]
    if kind == CONTROLLER_REPLACE:
        plan = plan_admission(image, request.request, _VIEW)
        made = start_admission(ctx, request, _VIEW, NOW_MS)
    elif kind == UPGRADE:
        plan = plan_upgrade(image, request.request, {1: _PROCESS})
        made = start_upgrade(ctx, request, {1: _PROCESS}, NOW_MS)
    else:
        view = PlanView(reports=cluster.reports, alive=_alive, quorum=_SEEN)
        plan = all_at_once(plan_steps(image, request.request, view))
        expect(
            all_at_once(plan_steps(image, request.request, view)) == plan, "the same asks for the same plan"
        )
        made = start_operation(ctx, request, plan, NOW_MS, _SEEN)
    json.dumps(plan_document(plan))
    records = made.all_records()
    if not made.reply.HasField("operation"):
        expect(
            bool(made.reply.error.code) and not records, "what was not begun says why, and changes nothing"
        )
        expect("\n" not in made.reply.error.message or "\n" in kind, "a refusal is one line")
        return
    expect(plan.runnable, "what a gate refuses is not begun")
    require_records(image, records)
    after = image.apply(records, image.version + 1) if records else image
    expect(MetadataImage.from_records(list(after.to_records()), after.version) == after, "it is read back")
    json.dumps(operation_document(made.reply.operation))


def _plan_seeds() -> Iterator[bytes]:
    parameters: list[tuple[str, dict[str, object]]] = [
        ("node-add", {"node_ids": [5]}),
        ("node-drain", {"node_ids": [1]}),
        ("node-uncordon", {"node_ids": [2]}),
        ("node-replace", {"node_ids": [1], "replacement_node_id": 5}),
        ("node-replace", {"node_ids": [1]}),
        ("node-remove", {"node_ids": [1, 2]}),
        ("set-replication-factor", {"topics": ["t", "u"], "replication_factor": 3}),
        (
            "rebalance",
            {"goals": ["replicas", "leaders", "bytes"], "max_bytes": 1 << 30, "excluded_node_ids": [3]},
        ),
        ("leader-elect", {"topics": ["t"], "partitions": [0, 3]}),
        ("rolling-restart", {"roles": ["controller"], "step_timeout_s": 60}),
        ("rolling-restart", {"process_names": ["node-1"]}),
        (UPGRADE, {"level": FEATURE_LEVEL}),
        (UPGRADE, {"downgrade": True}),
        (CONTROLLER_REPLACE, {"controller_id": 3}),
    ]
    for kind, given in parameters:
        request = api.PlanRequest(
            kind=kind,
            parameters=metadata_pb2.OperationParameters(**given),  # type: ignore[arg-type]
            throttle=metadata_pb2.OperationThrottle(auto=True),
            allowed_gates=["health", "single-replica", "min-isr"],
        )
        yield api.StartOperationRequest(request=request, principal="User:admin").SerializeToString()


def _control(data: bytes) -> None:
    request = api.ControlOperationRequest.FromString(data)
    cluster = _cluster()
    made = control_operation(cluster.ctx, request, NOW_MS)
    expect(
        bool(made.reply.error.code) != made.reply.HasField("operation"), "an operation, or why there is none"
    )
    records = made.all_records()
    after = cluster.image.apply(records, cluster.image.version + 1) if records else cluster.image
    expect(MetadataImage.from_records(list(after.to_records()), after.version) == after, "it is read back")
    json.dumps(operation_document(made.reply.operation))


def _control_seeds() -> Iterator[bytes]:
    number = max(_cluster().image.operations.operations)
    for control in range(6):
        request = api.ControlOperationRequest(operation_id=number, principal="User:admin")
        request.control = control  # type: ignore[assignment]
        request.throttle.bytes_per_s = 1_000_000 if control == api.OPERATION_CONTROL_THROTTLE else 0
        yield request.SerializeToString()


# -- files ---------------------------------------------------------------------------------------


def _backup(data: bytes) -> None:
    """A file as it is, or (first byte odd) with its count and CRC put right, so that they hide nothing."""
    if not data:
        return
    content = data[1:]
    if data[0] & 1:
        count = 0
        at = backup._START.size + int.from_bytes(content[12:16], "little")
        while at + 4 <= len(content):
            at += 4 + int.from_bytes(content[at : at + 4], "little")
            count += 1
        content += backup._END.pack(0, count, 0)[:-4]
        content += struct.pack("<I", zlib.crc32(content))
    found = backup.decode(content, "backup")
    if not may_be_written(found.image):
        return
    again = backup.decode(b"".join(backup.encode(found.image, found.head)), "backup")
    expect(again.head == found.head, "its head is read back")
    expect(not found.head.secrets or again.image == found.image, "and all that it holds")


def _backup_seeds() -> Iterator[bytes]:
    for records in (metadata_records()[:-3], metadata_records()[:2]):
        image = MetadataImage.from_records(records, 77)
        for secrets in (True, False):
            head = backup.BackupHead(image.cluster_id.hex(), 77, FEATURE_LEVEL, 3, NOW_MS, secrets)
            whole = b"".join(backup.encode(image, head))
            yield b"\x00" + whole
            yield b"\x01" + whole[: -backup._END.size]


def _events(data: bytes) -> None:
    """A file as it is, or (first byte odd) one sound frame with this body."""
    if not data:
        return
    content = data[1:]
    if data[0] & 1:
        head = frames._HEAD.pack(frames._MAGIC, len(content), 7, 0, data[0] >> 1 & 1, 0)[:-4]
        content = head + struct.pack("<I", zlib.crc32(content, zlib.crc32(head))) + content
    found, end = frames.frames(content)
    expect(end <= len(content), "good frames end inside the file")
    expect(sum(frames.size_bytes(one) for one in found) == end, "and lie one behind another")
    expect(not data[0] & 1 or len(found) == 1, "a sound frame is whole")
    expect(frames.frames(content[:end]) == (found, end), "what is cut off changes nothing")
    for one in found:
        events = one.events()
        again = frames.frame(events, one.version, gap_ms=one.gap_ms, more=one.more)
        (read,), _ = frames.frames(again)
        expect(list(read.events()) == list(events), "events are read back")


def _events_seeds() -> Iterator[bytes]:
    cause = metadata_pb2.Cause(kind="fence", subject="node 2", detail="silent 2100 ms")
    events = [
        api.ClusterEvent(
            version=n,
            time_ms=NOW_MS + n,
            event="leader",
            subject=f"partition t-{n}",
            change="2 -> 3",
            cause=cause,
        )
        for n in range(3)
    ]
    whole = frames.frame(events[:1], 1) + frames.frame(events[1:], 3, gap_ms=NOW_MS, more=True)
    yield b"\x00" + whole
    yield b"\x00" + whole[:-5]
    yield b"\x01" + api.ReadEventsResponse(events=events).SerializeToString()
    yield b"\x03"


_KINDS: Final = (
    *(b"node-add", b"node-drain", b"node-replace", b"node-remove", b"rebalance", b"leader-elect", b"upgrade"),
    *(b"set-replication-factor", b"rolling-restart", b"controller-replace", b"health", b"racks", b"bytes"),
)

TARGETS: Final = [
    Target(
        "admin.plan",
        _plan,
        (DecodeError, PenstockError),
        _plan_seeds,
        share=10,
        input_bytes_max=512,
        words=_KINDS,
    ),
    Target("admin.control", _control, (DecodeError,), _control_seeds, share=5, input_bytes_max=256),
    Target(
        "metadata.backup",
        _backup,
        (backup.BadBackup,),
        _backup_seeds,
        share=15,
        words=(b"PENSTBAK", b'"secrets":true'),
    ),
    Target("controller.events", _events, (), _events_seeds, share=15, input_bytes_max=2048),
]
