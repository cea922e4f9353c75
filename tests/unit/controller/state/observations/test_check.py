"""What `check` finds, code by code, and what it says."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from penstock_controller.state.controllers import Connected, QuorumView
from penstock_controller.state.observations.check import CheckView, check_steps
from penstock_controller.state.observations.findings import CODES, SEVERITIES, TOPICS_MAX
from penstock_controller.state.observations.processes import ControllerSaid
from penstock_controller.state.operations.reports import Reports
from penstock_core.ids import NodeId
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.image import GatewayImage
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import metadata_pb2 as meta
from penstock_proto.v1 import operations_pb2 as pb
from penstock_runtime.turns import all_at_once
from unit.controller.state.operations.images import (
    ask,
    carried_out,
    cluster,
    ids,
    node,
    partition,
    planned,
    random_cluster,
    reported,
    under_way,
)

WELL = QuorumView(1, frozenset({1}), {1: Connected(b"1", True)})
SAID = {1: ControllerSaid("", 3)}
RACKS = {1: "a/h1", 2: "a/h1", 3: "a/h2", 4: "a/h2", 5: "b/h3", 6: "b/h3", 7: "c/h4", 8: "c/h4"}


def checked(
    image: MetadataImage,
    reports: Reports | None = None,
    quorum: QuorumView = WELL,
    controllers: Mapping[int, ControllerSaid] | None = None,
) -> list[pb.Finding]:
    view = CheckView(reports or reported(image), quorum, SAID if controllers is None else controllers)
    response = all_at_once(check_steps(image, view))
    assert response.metadata_version == image.version
    for each in response.findings:
        assert each.severity in SEVERITIES
        assert each.code in CODES
        assert each.subject and each.detail and each.hint
    return list(response.findings)


def brief(findings: Iterable[pb.Finding]) -> list[tuple[str, str, str]]:
    return [(f.severity, f.code, f.subject) for f in findings]


def one(findings: Iterable[pb.Finding], code: str) -> pb.Finding:
    (found,) = [f for f in findings if f.code == code]
    return found


def hosts() -> list[Any]:
    return [node(n, rack) for n, rack in RACKS.items()]


def test_the_codes_are_those_of_the_contract() -> None:
    assert len(CODES) == 17
    assert len(set(CODES)) == 17


def test_a_cluster_that_is_well() -> None:
    assert checked(cluster(range(1, 4), {"t": [(1, 2, 3), (2, 3, 1), (3, 1, 2)]})) == []


def test_nothing_that_is_not_known_is_held_against_anybody() -> None:
    image = cluster(range(1, 4), {"t": [(1, 2, 3)]})
    assert checked(image, reports=Reports()) == []


@pytest.mark.parametrize(
    ("isr", "severity", "code"),
    [
        ((), "error", "offline"),
        ((1,), "error", "under-min-isr"),
        ((1, 2), "warning", "under-replicated"),
    ],
)
def test_the_gravest_of_what_a_partition_lacks(isr: tuple[int, ...], severity: str, code: str) -> None:
    image = cluster(range(1, 4), {"t": [partition("t", 0, [1, 2, 3], isr=isr), (2, 3, 1)]})
    assert brief(checked(image)) == [(severity, code, "partition t-0")]


def test_who_is_to_be_started_is_named() -> None:
    nodes = [node(1), node(2, fenced=True), node(3)]
    image = cluster(nodes, {"t": [partition("t", n, [1, 2, 3], isr=(1, 3)) for n in range(12)]})
    found = checked(image)
    assert brief(found)[:2] == [
        ("error", "node-missing", "node 2"),
        ("warning", "under-replicated", "topic t"),
    ]
    assert "12 of 12 partitions (0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 2 more)" in found[1].detail
    assert "start node 2 again" in found[1].hint
    assert "12 replicas" in found[0].detail


def test_who_may_lead_an_offline_partition_is_named() -> None:
    dark = replace(partition("t", 0, [1, 2, 3], isr=()), elr=ids([2, 3]))
    image = cluster([node(1), node(2, fenced=True), node(3, fenced=True)], {"t": [dark]})
    assert one(checked(image), "offline").hint == "start nodes 2, 3 again"


def test_replicas_that_a_move_adds_do_not_count_yet() -> None:
    moving = replace(partition("t", 0, [1, 2, 3], isr=[1, 2]), adding_replicas=ids([3]))
    image = cluster(range(1, 4), {"t": [moving]}, configs={"t": {"min.insync.replicas": "1"}})
    assert "under-replicated" not in [f.code for f in checked(image)]


def test_a_single_copy() -> None:
    found = checked(cluster(range(1, 4), {"t": [(1,), (2,), (3,)]}))
    assert ("warning", "single-replica", "topic t") in brief(found)
    assert "`penstock topic set-replication-factor t 3`" in one(found, "single-replica").hint
    # Where there is one node nobody can do anything about it but start another.
    assert [f.severity for f in checked(cluster([1], {"t": [(1,)]}))] == ["info", "info"]


# --- domains ----------------------------------------------------------------------------------


def test_a_topic_that_a_host_takes_with_it_is_named_and_others_are_not() -> None:
    image = cluster(
        hosts(),
        {
            "safe": [(1, 5, 7), (6, 8, 3), (2, 6, 8), (4, 5, 7)],
            "on-one-host": [(3, 4)],
            "in-one-rack": [(1, 3)],
        },
        configs={name: {"min.insync.replicas": "1"} for name in ("on-one-host", "in-one-rack")},
    )
    found = [f for f in checked(image) if f.code == "domain-unsafe"]
    assert [f.subject for f in found] == ["partition in-one-rack-0", "partition on-one-host-0"]
    assert "the loss of one rack" in found[0].detail and "rack a" in found[0].detail
    assert "the loss of one host" in found[1].detail and "host a/h2" in found[1].detail
    for each in found:
        assert each.severity == "warning"
        assert "records are lost" in each.detail
        assert "`penstock cluster rebalance --topic" in each.hint


def test_too_few_left_to_write_is_told_apart_from_data_lost() -> None:
    image = cluster(hosts(), {"t": [(3, 4, 7)]})
    found = one(checked(image), "domain-unsafe")
    assert found.severity == "warning"
    assert (
        "2 of the 3 replicas of partition 0 are on host a/h2, too few stay to take acks=all" in found.detail
    )


def test_what_no_placement_mends_is_told_as_it_is() -> None:
    # Two racks: one of them has two of three replicas wherever they are put.
    nodes = [node(1, "a"), node(2, "a"), node(3, "b"), node(4, "b")]
    found = one(checked(cluster(nodes, {"t": [(1, 2, 3)]})), "domain-unsafe")
    assert (found.severity, found.hint) == ("info", "`penstock topic set-replication-factor t 4`")
    # min ISR as large as the replication factor: each stop of a node stops writes.
    strict = cluster(range(1, 5), {"t": [(1, 2)]}, configs={"t": {"min.insync.replicas": "2"}})
    found = one(checked(strict), "domain-unsafe")
    assert (found.severity, found.hint) == ("warning", "`penstock topic set-replication-factor t 3`")


def test_one_rack_for_all_is_said_once() -> None:
    image = cluster([node(n, "a") for n in range(1, 4)], {"t": [(1, 2, 3), (2, 3, 1)]})
    assert brief(checked(image)) == [("info", "domain-unsafe", "rack a")]


@pytest.mark.parametrize("seed", range(30))
def test_a_rebalance_does_what_its_hint_says(seed: int) -> None:
    image = random_cluster(random.Random(seed), unwell=False)
    plan = planned(image, ask("rebalance", goals=["replicas", "leaders"]))
    after = carried_out(image, plan)
    assert [f.subject for f in checked(after) if "rebalance --topic" in f.hint] == []


# --- evenness ---------------------------------------------------------------------------------


def test_new_nodes_without_a_share() -> None:
    image = cluster(range(1, 5), {"t": [(1, 2)] * 10})
    found = checked(image)
    assert one(found, "uneven-replicas").severity == "warning"
    assert "node 1 has 10, node 3 0" in one(found, "uneven-replicas").detail
    assert one(found, "uneven-leaders").hint.startswith("`penstock cluster rebalance --goal leaders`")
    # Who is cordoned is not to have a share.
    image = cluster(range(1, 5), {"t": [(1, 2), (2, 1)] * 5}, cordoned=[3, 4])
    assert [f.code for f in checked(image) if f.code.startswith("uneven")] == []


def test_leaders_that_come_back_by_themselves_are_no_trouble() -> None:
    nodes, names = range(1, 4), [(1, 2, 3), (2, 3, 1), (3, 1, 2)] * 3
    led = [partition("t", n, replicas, leader=1) for n, replicas in enumerate(names)]
    found = one(checked(cluster(nodes, {"t": led})), "uneven-leaders")
    assert found.severity == "info"
    assert "by themselves" in found.hint


def test_a_rack_with_fewer_nodes_has_more_on_each() -> None:
    nodes = [node(1, "a"), node(2, "a"), node(3, "b")]
    image = cluster(nodes, {"t": [(1, 3), (2, 3), (3, 1), (3, 2)]})
    assert "uneven-replicas" not in [f.code for f in checked(image)]


# --- nodes and disks ----------------------------------------------------------------------------


def test_disks() -> None:
    nodes = [node(1), node(2, disk_full=True), replace(node(3), disk_failed=True, fenced=True)]
    image = cluster(nodes, {"t": [partition("t", 0, [1, 2], isr=[1, 2])]})
    reports = Reports()
    for node_id, free in ((1, 9), (2, 0)):
        report = pb.NodeReport(disk_total_bytes=100, disk_free_bytes=free)
        reports.take(NodeId(node_id), 1, report, 0)
    found = brief(checked(image, reports))
    assert [f for f in found if f[1].startswith(("disk", "node"))] == [
        ("error", "disk-failed", "node 3"),
        ("error", "disk-full", "node 2"),
        ("warning", "disk-low", "node 1"),
    ]


def test_nodes_that_are_away() -> None:
    image = cluster([node(1), node(2), node(3, fenced=True)], {"t": [(1, 2), (2, 1)]})
    assert brief(checked(image)) == [("warning", "node-missing", "node 3")]
    assert brief(checked(cluster([], {}))) == [("error", "node-missing", "cluster")]


def test_strays_and_slots() -> None:
    image = cluster(range(1, 4), {"t": [(1, 2, 3)]})
    reports = Reports()
    report = pb.NodeReport(stray_logs=2, stray_bytes=5_000_000, unclaimed_slots=["slot-4", "slot-3"])
    for node_id in (1, 2):
        reports.take(NodeId(node_id), 1, report, 0)
    found = checked(image, reports)
    assert [f.subject for f in found if f.code == "strays"] == ["node 1", "node 2"]
    assert "5.0 MB" in one(found[:-1], "strays").detail
    slots = one(found, "slot-unclaimed")
    assert (slots.severity, slots.subject) == ("warning", "slots slot-3, slot-4")
    assert "scale storage-node to 5" in slots.hint


# --- processes ----------------------------------------------------------------------------------


def quorum(connected: Mapping[int, Connected], members: Iterable[int] = (1, 2, 3)) -> QuorumView:
    return QuorumView(1, frozenset(members), {1: Connected(b"1", True), **connected})


def test_controllers_that_do_not_vote() -> None:
    image = replace(cluster([1], {}), controllers={1: b"1", 2: b"2", 3: b"3"})
    well = {2: Connected(b"2", True), 3: Connected(b"3", True)}
    said = {n: ControllerSaid("", 3) for n in (1, 2, 3)}

    def told(view: QuorumView, controllers: Mapping[int, ControllerSaid] = said) -> list[pb.Finding]:
        return [f for f in checked(image, None, view, controllers) if f.code == "controller-not-voting"]

    assert told(quorum(well)) == []
    (gone,) = told(quorum({2: well[2]}))
    assert (gone.severity, gone.subject) == ("error", "controller 3"), "one more and there is no majority"
    assert "2 of 3 vote" in gone.detail
    (new,) = told(quorum({**well, 3: Connected(b"new", False)}))
    assert "`penstock controller replace 3`" in new.hint
    (late,) = told(quorum(well), {**said, 2: ControllerSaid("", 3, "it reads the log first")})
    assert (late.subject, "reads the log" in late.detail) == ("controller 2", True)
    five = quorum({n: Connected(b"", True) for n in (2, 3, 4)}, range(1, 6))
    assert [f.severity for f in checked(cluster([1], {}), None, five) if "voting" in f.code] == ["warning"]


def test_builds_and_levels() -> None:
    gateway = meta.GatewayRecord(process=common.ProcessInfo(version="0.2", feature_level=4))
    image = replace(
        cluster([replace(node(n), version="0.1") for n in (1, 2)], {}, level=2),
        gateways={"gateway-1": GatewayImage("gateway-1", 1, gateway)},
    )
    found = checked(image, None, WELL, {1: ControllerSaid("0.1", 3)})
    mixed = one(found, "mixed-versions")
    assert mixed.severity == "warning"
    assert "0.1 (level 3): controller-1, node-1, node-2; 0.2 (level 4): gateway-1" in mixed.detail
    behind = one(found, "level-behind")
    assert (behind.severity, behind.detail) == ("info", "metadata.level is 2, every process understands 3")
    assert "cluster upgrade" in behind.hint


def test_an_operation_that_waits_for_somebody() -> None:
    image = under_way(cluster([1], {}), 40, "node-drain", state=meta.OPERATION_STATE_PAUSED)
    image.operations.operations[40].reason = "asked for by User:ann"
    found = one(checked(image), "operation-paused")
    assert (found.severity, found.subject) == ("warning", "operation 40")
    assert "asked for by User:ann" in found.detail
    assert "operation resume 40" in found.hint
    assert checked(under_way(cluster([1, 2], {}), 40, "node-drain")) == []


# --- size ---------------------------------------------------------------------------------------


def test_very_many_troubles_are_few_findings() -> None:
    topics = {f"t{n:03}": [partition(f"t{n:03}", 0, [1, 2, 3], isr=[1, 3])] for n in range(200)}
    found = [f for f in checked(cluster(range(1, 4), topics)) if f.code == "under-replicated"]
    assert len(found) == TOPICS_MAX + 1
    assert found[-1].subject == "150 further topics"
    assert "150 partitions" in found[-1].detail
