"""Planted bugs, fifth part: operations, the nodes that they empty and the directories that they retire.

For `planted`, which says what such a bug is and has the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import penstock_controller.active.command_queue as command_queue
import penstock_controller.state.directories as directories
import penstock_controller.state.elections as elections_module
import penstock_controller.state.features as features
import penstock_controller.state.nodes as nodes_module
import penstock_controller.state.partitions as partitions_module
from penstock_controller.state.generation import partition_record
from penstock_controller.state.operations.engine import endings, policies, window
from penstock_controller.state.operations.engine.changes import Changes
from penstock_controller.state.operations.engine.ledger import Ledger
from penstock_controller.state.operations.engine.rolling import _Restart
from penstock_controller.state.operations.engine.stages import Stage
from penstock_controller.state.operations.engine.steps import _Step
from penstock_controller.state.operations.engine.window import Window
from penstock_controller.state.operations.plans import gates
from penstock_controller.state.operations.plans.gates import Finding
from penstock_controller.state.reassignments import reassign
from penstock_storage_node.log import slots
from penstock_storage_node.replica.registry import PartitionRegistry
from penstock_storage_node.rpc.catch_up_throttle import Direction
from penstock_storage_node.rpc.replicate_follower import FollowerStream
from simulation.settings import Settings

Patch = tuple[Any, str, Any]
Row = tuple[str, str, Callable[[], list[Patch]], Callable[[Settings], None]]


def _with_operations(settings: Settings) -> None:
    settings.with_operations = True


def _often_preferred(settings: Settings) -> None:
    settings.with_operations = True
    settings.rebalance_ms = 2_000


def _many_stops(settings: Settings) -> None:
    settings.with_operations = True
    settings.favoured = ("node killed", "node power cut", "host cut off")
    settings.fault_interval_us = 600_000


def _removed_before_in_sync() -> list[Patch]:
    def completed(old: Any, isr: Any, rules: Any) -> Any:
        # "Enough of those that stay are in sync", rather than all of them.
        staying = tuple(n for n in old.replicas if n not in old.removing_replicas)
        if not old.reassigning or not any(n in isr and rules.active(n) for n in staying):
            return old
        return replace(old, replicas=staying, adding_replicas=(), removing_replicas=())

    return [(partitions_module, "_completed", completed)]


def _cancel_forgets_additions() -> list[Patch]:
    def go_back(step: Any) -> Any:
        return endings.cancelled(step._image, step._ledger, step._now_ms)

    return [(_Step, "_go_back", go_back)]


def _cancel_leaves_cordons() -> list[Patch]:
    return [(policies, "lifted", lambda *_: [])]


def _preferred_ignores_cordon() -> list[Patch]:
    def rules_for(image: Any, topic: Any) -> Any:
        return replace(
            nodes_rules(image, topic), last_choice=lambda node_id: nodes_module.is_full(image, node_id)
        )

    nodes_rules = nodes_module.rules_for
    return [
        (elections_module, "is_last_choice", nodes_module.is_full),
        (elections_module, "rules_for", rules_for),
    ]


def _retired_directory_admitted() -> list[Patch]:
    grant_id = nodes_module._grant_id

    def grant(ctx: Any, request: Any) -> Any:
        operations = replace(ctx.image.operations, retired={})
        return grant_id(replace(ctx, image=replace(ctx.image, operations=operations)), request)

    return [(nodes_module, "_grant_id", grant)]


def _replaced_directory_let_in() -> list[Patch]:
    return [(directories, "replaced", lambda *_: [])]


def _throttle_per_pair() -> list[Patch]:
    init: Any = FollowerStream.__init__

    def apart(stream: Any, *args: Any) -> None:
        *others, inlet = args
        (budget,) = inlet.args
        own = Direction(budget._rate, budget._clock_s, budget._message_bytes_min)
        init(stream, *others, partial(inlet.func, own))

    return [(FollowerStream, "__init__", apart)]


def _retired_slot_claimed() -> list[Patch]:
    return [(slots, "retired_by", lambda *_: 0)]


def _steps_not_read() -> list[Patch]:
    aim = Changes.aim

    def again(changes: Any, slot: Any, wanted: Any) -> Any:
        records = aim(changes, slot, wanted)
        if records or slot.partition is None:
            return records
        # "Nothing changes" is told as a change.
        raised = replace(slot.partition, partition_epoch=slot.partition.partition_epoch + 1)
        return [partition_record(raised)]

    def move(step: Any) -> Any:
        slots = [*step._ledger.stages[Stage.TODO].values(), *step._ledger.stages[Stage.RUNNING].values()]
        return [r for slot in slots for r in step._make.aim(slot, slot.move.replicas)]

    return [(Changes, "aim", again), (_Step, "_move", move)]


def _back_below_min_isr() -> list[Patch]:
    def aim(changes: Any, slot: Any, wanted: Any) -> Any:
        old = slot.partition
        new = None if old is None else reassign(old, wanted, changes.rules_of(old.topic_id))
        return [] if new is None else [partition_record(new)]

    return [(Changes, "aim", aim)]


def _ends_when_all_is_begun() -> list[Patch]:
    return [(Ledger, "open", property(lambda ledger: bool(ledger.stages[Stage.TODO])))]


def _boot_id_not_compared() -> list[Patch]:
    def same(_restart: Any, _step: Any, boot_id: bytes) -> str:
        return "" if boot_id else "is not back"

    return [(_Restart, "_same", same)]


def _level_not_asked() -> list[Patch]:
    return [
        (gates, "versions", lambda _image: Finding(gates.VERSIONS)),
        (command_queue, "require_records", lambda _image, _records: None),
    ]


def _upgrade_asks_nobody() -> list[Patch]:
    return [(features, "_behind", lambda *_: iter(()))]


def _full_follower_kept() -> list[Patch]:
    return [(PartitionRegistry, "is_full", lambda _registry, _node: False)]


def _copied_onto_full_disks() -> list[Patch]:
    unfit = window.unfit

    def fits(image: Any, node_id: Any) -> str:
        why = unfit(image, node_id)
        return "" if why == "has a full disk" else why

    return [(window, "unfit", fits), (Window, "lacks_room", lambda _window, _slot: None)]


def _old_disks(settings: Settings) -> None:
    settings.with_operations = True
    settings.operations = ("old disks",)


def _slow_copies(settings: Settings) -> None:
    settings.with_operations = True
    settings.operations = ("calm", "slow copies")
    settings.partitions = 3
    settings.producers = 3
    settings.produce_interval_us = 100_000


def _in_slots(settings: Settings) -> None:
    settings.with_operations = True
    settings.operations = ("slots",)


def _calm(settings: Settings) -> None:
    settings.with_operations = True
    settings.operations = ("calm",)


def _old_builds(settings: Settings) -> None:
    settings.with_operations = True
    settings.operations = ("old builds",)


def _full_disks(settings: Settings) -> None:
    """For longer than the checks have patience, and nothing else happens meanwhile; no follower leaves for its lag."""
    settings.with_operations = True
    settings.favoured = ("disk full for long",) * 20
    settings.fault_interval_us = 9_000_000
    settings.lag_max_ms = 30_000


ROWS: list[Row] = [
    (
        "boot-id-not-compared",
        "a rolling restart takes a process for restarted because it is up",
        _boot_id_not_compared,
        _calm,
    ),
    (
        "level-not-asked",
        "operations are written whatever the level of the cluster is",
        _level_not_asked,
        _old_builds,
    ),
    (
        "upgrade-asks-nobody",
        "the level rises though older processes are there",
        _upgrade_asks_nobody,
        _old_builds,
    ),
    (
        "full-follower-kept",
        "a full follower stays in the ISR as long as it keeps up",
        _full_follower_kept,
        _full_disks,
    ),
    (
        "copied-onto-full-disks",
        "moves begin though a target is full",
        _copied_onto_full_disks,
        _full_disks,
    ),
    (
        "removed-before-in-sync",
        "a reassignment drops old replicas when one of the new ones is in sync",
        _removed_before_in_sync,
        _with_operations,
    ),
    (
        "cancel-forgets-additions",
        "a cancelled operation leaves what is on its way where it is",
        _cancel_forgets_additions,
        _with_operations,
    ),
    (
        "cancel-leaves-cordons",
        "a cancelled operation leaves its nodes cordoned",
        _cancel_leaves_cordons,
        _with_operations,
    ),
    (
        "preferred-ignores-cordon",
        "preferred leaders lead again though they are cordoned",
        _preferred_ignores_cordon,
        _often_preferred,
    ),
    (
        "retired-directory-admitted",
        "a directory that was retired registers again",
        _retired_directory_admitted,
        _with_operations,
    ),
    (
        "replaced-directory-let-in",
        "what a node had before it was replaced in its place, or removed, may come back",
        _replaced_directory_let_in,
        _old_disks,
    ),
    (
        "throttle-per-pair",
        "the throttle of a move is one of each pair of nodes, not of each node",
        _throttle_per_pair,
        _slow_copies,
    ),
    (
        "retired-slot-claimed",
        "a process takes a slot though it was retired",
        _retired_slot_claimed,
        _in_slots,
    ),
    ("steps-not-read", "a step aims what is aimed already", _steps_not_read, _with_operations),
    (
        "back-below-min-isr",
        "what goes back drops replicas that min ISR needs",
        _back_below_min_isr,
        _many_stops,
    ),
    (
        "ends-when-all-is-begun",
        "an operation counts as done when its last move has begun",
        _ends_when_all_is_begun,
        _with_operations,
    ),
]
