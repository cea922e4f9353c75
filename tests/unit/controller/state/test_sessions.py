"""Sessions: silence, hung disks, late ticks, new active controllers. Time is a number here."""

from __future__ import annotations

from dataclasses import replace

from penstock_controller.state.sessions import Expired, RequestedTransition, Sessions
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

TIMEOUT_MS = 2000
TICK_MS = 100


def image(*, fenced: bool = False, in_controlled_shutdown: bool = False) -> MetadataImage:
    node = pb.NodeRecord(
        node_id=1, node_epoch=5, fenced=fenced, in_controlled_shutdown=in_controlled_shutdown
    )
    records = [
        pb.MetadataRecord(node=node),
        pb.MetadataRecord(node=pb.NodeRecord(node_id=2, node_epoch=6)),
        pb.MetadataRecord(gateway=pb.GatewayRecord(gateway_id="g", gateway_epoch=7)),
    ]
    return MetadataImage.from_records(records, 10)


def sessions(of: MetadataImage, now_ms: int = 0) -> Sessions:
    made = Sessions(TIMEOUT_MS, TICK_MS)
    made.begin(of, now_ms)
    return made


def beat(node_id: int = 1, version: int = 10, **fields: object) -> api.NodeHeartbeat:
    return api.NodeHeartbeat(node_id=node_id, node_epoch=node_id + 4, metadata_version=version, **fields)  # type: ignore[arg-type]


def ticks(target: Sessions, of: MetadataImage, start_ms: int, end_ms: int) -> list[Expired]:
    lost: list[Expired] = []
    for now_ms in range(start_ms, end_ms + 1, TICK_MS):
        lost += target.tick(of, now_ms)
    return lost


def test_silence_ends_a_session() -> None:
    of = image()
    target = sessions(of)
    for now_ms in range(0, 2100, TICK_MS):
        target.node_heartbeat(beat(2), of, now_ms)
        assert target.tick(of, now_ms) == []
    assert [(e.name, e.epoch) for e in target.tick(of, 2100)] == [(1, 5), ("g", 7)]
    assert not target.alive(NodeId(1), 2100)
    assert target.alive(NodeId(2), 2100)


def test_a_new_active_controller_starts_everyone_afresh() -> None:
    of = image()
    target = sessions(of, now_ms=1_000_000)
    assert ticks(target, of, 1_000_000, 1_000_000 + TIMEOUT_MS) == []
    target.begin(of, 1_005_000)
    assert target.tick(of, 1_005_100) == []


def test_own_late_tick_moves_all_deadlines() -> None:
    of = image()
    target = sessions(of)
    ticks(target, of, 100, 1000)
    # The controller was stopped for a minute: 59,900 ms late. Everyone has what was left before.
    assert target.tick(of, 61_000) == []
    assert ticks(target, of, 61_100, 61_900) == []
    assert {e.name for e in ticks(target, of, 62_000, 62_100)} == {1, 2, "g"}


def test_who_is_heard_before_a_late_tick_has_one_timeout_as_all_others() -> None:
    of = image()
    target = sessions(of)
    ticks(target, of, 100, 1000)
    # Stopped for an hour. What came in as it went on is read before its tick, then node 1 loses its power.
    woken_ms = 3_600_000
    assert target.node_heartbeat(beat(1), of, woken_ms) is RequestedTransition.NOTHING
    assert target.tick(of, woken_ms) == []
    assert target.heard_ms(NodeId(1)) == woken_ms
    assert 1 in {e.name for e in ticks(target, of, woken_ms + TICK_MS, woken_ms + TIMEOUT_MS + TICK_MS)}


def test_hung_disk_ends_a_session_though_heartbeats_come() -> None:
    of = image()
    target = sessions(of)
    lost = []
    for now_ms in range(0, 4000, TICK_MS):
        target.node_heartbeat(beat(1, disk_jobs_done=3, disk_jobs_waiting=2), of, now_ms)
        target.node_heartbeat(beat(2, disk_jobs_done=now_ms, disk_jobs_waiting=2), of, now_ms)
        lost = [e for e in target.tick(of, now_ms) if e.name != "g"]
        if lost:
            break
    assert [e.name for e in lost] == [1]
    assert now_ms in range(TIMEOUT_MS, TIMEOUT_MS + 300)
    assert "disk" in lost[0].reason
    # It stays fenced until the disk moves again.
    fenced = image(fenced=True)
    assert (
        target.node_heartbeat(beat(1, disk_jobs_done=3, disk_jobs_waiting=2), fenced, 4000)
        is RequestedTransition.NOTHING
    )
    assert (
        target.node_heartbeat(beat(1, disk_jobs_done=4, disk_jobs_waiting=2), fenced, 4100)
        is RequestedTransition.UNFENCE
    )


def test_idle_disk_is_not_hung() -> None:
    of = image()
    target = sessions(of)
    for now_ms in range(0, 10_000, TICK_MS):
        target.node_heartbeat(beat(1, disk_jobs_done=3), of, now_ms)
        assert all(e.name != 1 for e in target.tick(of, now_ms))


def test_unfenced_only_when_caught_up() -> None:
    of = image(fenced=True)
    target = sessions(of)
    assert target.node_heartbeat(beat(1, version=4), of, 1) is RequestedTransition.NOTHING
    assert target.node_heartbeat(beat(1, version=5), of, 2) is RequestedTransition.UNFENCE
    assert target.node_heartbeat(beat(1, version=5, want_shutdown=True), of, 3) is RequestedTransition.NOTHING
    assert target.node_heartbeat(beat(1, version=5, disk_failed=True), of, 4) is RequestedTransition.NOTHING


def test_a_node_that_says_otherwise_than_the_metadata_of_its_disk_space_has_it_noted() -> None:
    of = image()
    target = sessions(of)
    full = MetadataImage(nodes={n: replace(node, disk_full=True) for n, node in of.nodes.items()})
    assert target.node_heartbeat(beat(1, disk_full=True), of, 1) is RequestedTransition.NOTE_SPACE
    assert target.node_heartbeat(beat(1, disk_full=True), full, 2) is RequestedTransition.NOTHING
    assert target.node_heartbeat(beat(1), full, 3) is RequestedTransition.NOTE_SPACE
    assert (
        target.node_heartbeat(beat(1, disk_full=True, want_shutdown=True), of, 4) is RequestedTransition.DRAIN
    )
    fenced = image(fenced=True)
    both = beat(1, version=5, disk_full=True)
    assert target.node_heartbeat(both, fenced, 5) is RequestedTransition.UNFENCE


def test_drain_on_shutdown_and_on_a_failed_disk() -> None:
    of = image()
    target = sessions(of)
    assert target.node_heartbeat(beat(1), of, 1) is RequestedTransition.NOTHING
    assert target.node_heartbeat(beat(1, want_shutdown=True), of, 1) is RequestedTransition.DRAIN
    assert target.node_heartbeat(beat(1, disk_failed=True), of, 1) is RequestedTransition.DRAIN
    draining = image(in_controlled_shutdown=True)
    assert target.node_heartbeat(beat(1, disk_failed=True), draining, 2) is RequestedTransition.NOTHING
    # The disk is well again.
    assert target.node_heartbeat(beat(1), draining, 3) is RequestedTransition.UNFENCE


def test_heartbeats_of_another_registration_count_for_nothing() -> None:
    of = image()
    target = sessions(of)
    old = api.NodeHeartbeat(node_id=1, node_epoch=4)
    assert target.node_heartbeat(old, of, 1900) is None
    assert target.node_heartbeat(api.NodeHeartbeat(node_id=9, node_epoch=4), of, 1900) is None
    assert target.gateway_heartbeat(api.GatewayHeartbeat(gateway_id="g", gateway_epoch=1), of, 1) is None
    ticks(target, of, 100, 2000)
    assert {e.name for e in target.tick(of, 2100)} == {1, 2, "g"}


def test_gateway_that_wants_to_go() -> None:
    of = image()
    target = sessions(of)
    stays = api.GatewayHeartbeat(gateway_id="g", gateway_epoch=7)
    assert target.gateway_heartbeat(stays, of, 1) is RequestedTransition.NOTHING
    goes = api.GatewayHeartbeat(gateway_id="g", gateway_epoch=7, want_shutdown=True)
    assert target.gateway_heartbeat(goes, of, 1) is RequestedTransition.FENCE


def test_seen_by_others_waits_for_everyone_alive() -> None:
    of = image()
    target = sessions(of)
    assert not target.seen_by_others(of, NodeId(1), 9)
    target.node_heartbeat(beat(2, version=9), of, 1)
    assert not target.seen_by_others(of, NodeId(1), 9)
    gateway = api.GatewayHeartbeat(gateway_id="g", gateway_epoch=7, metadata_version=9)
    target.gateway_heartbeat(gateway, of, 1)
    assert target.seen_by_others(of, NodeId(1), 9)
    assert not target.seen_by_others(of, NodeId(1), 10)
    assert not target.seen_by_others(of, None, 9)


def test_steady_after_a_while_of_service() -> None:
    fenced, up = image(fenced=True), image()
    target = sessions(fenced)
    target.node_registered(NodeId(1), 5, 0)
    target.node_heartbeat(beat(1), fenced, 10)
    assert not target.steady(NodeId(1), 1000, 5000)
    target.node_heartbeat(beat(1), up, 1000)
    assert not target.steady(NodeId(1), 1000, 1900)
    assert target.steady(NodeId(1), 1000, 2000)
    target.node_heartbeat(beat(1), fenced, 2100)
    assert not target.steady(NodeId(1), 1000, 4000)


def test_removed_nodes_and_gateways_are_forgotten() -> None:
    of = image()
    target = sessions(of)
    target.tick(MetadataImage(), 100)
    assert target.heard_ms("g") is None
    assert target.heard_ms(NodeId(1)) is None


def test_missed_heartbeats_make_a_suspect() -> None:
    of = image()
    target = sessions(of)
    target.node_heartbeat(beat(2), of, 600)
    assert target.silent(of, 700, 700) == []
    assert [e.name for e in target.silent(of, 700, 701)] == [1, "g"]
    assert [e.name for e in target.silent(image(fenced=True), 700, 701)] == ["g"]


def test_a_process_that_is_known_to_be_gone_has_no_session() -> None:
    of = image()
    target = sessions(of)
    target.end(NodeId(1), 5, "connection refused")
    target.end("g", 7, "connection refused")
    assert not target.alive(NodeId(1), 0)
    assert not target.steady(NodeId(1), 0, 0)
    assert [e.name for e in target.silent(of, -1, 0)] == [2]
    # Until that is committed each tick says it again: a tick begins no session for who is gone.
    for now_ms in (100, 200):
        assert target.tick(of, now_ms) == [
            Expired(NodeId(1), 5, "connection refused"),
            Expired("g", 7, "connection refused"),
        ]
        assert not target.alive(NodeId(1), now_ms)
    assert target.alive(NodeId(2), 200)


def test_who_is_heard_is_not_gone() -> None:
    of = image()
    target = sessions(of)
    target.end(NodeId(1), 5, "connection refused")
    target.end("g", 7, "connection refused")
    target.node_heartbeat(beat(1), of, 100)
    target.gateway_heartbeat(api.GatewayHeartbeat(gateway_id="g", gateway_epoch=7), of, 100)
    assert target.alive(NodeId(1), 100)
    assert target.tick(of, 100) == []


def test_a_later_registration_is_not_ended_by_what_was_seen_of_the_one_before() -> None:
    of = image()
    target = sessions(of)
    target.node_registered(NodeId(1), 9, 50)
    target.end(NodeId(1), 5, "connection refused")
    assert target.alive(NodeId(1), 100)
    target.end(NodeId(3), 1, "connection refused")
    assert not target.alive(NodeId(3), 100)
