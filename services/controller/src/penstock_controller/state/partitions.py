"""How a partition's ISR, ELR and leader change: Kafka's PartitionChangeBuilder, with KIP-966.

Rules:
- The leader stays while it is valid: in the ISR (or, when the ISR is empty, in the
  ELR) and active. Else the first such replica in the assignment's order.
- Members that leave while the ISR falls below the effective min ISR become ELR: they
  hold everything acknowledged, because nothing is acknowledged below min ISR. With the
  ISR at min again the ELR is cleared.
- A replica known to have lost data (`lost`) leaves both.
- Nobody left in ISR and ELR: the last known leader, once it is active (as Kafka's
  last-known-leader recovery), or with unclean election on any active replica. Its data
  is then the truth, and the partition counts as recovering.
- Every change of leader raises the leader epoch, every change the partition epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId
from penstock_core.metadata import PartitionImage


@dataclass(frozen=True, slots=True)
class Rules:
    """What an election depends on beside the partition."""

    active: Callable[[NodeId], bool]
    # Effective: min(min.insync.replicas, replication factor).
    min_isr: int
    unclean: bool = False


def change_partition(
    old: PartitionImage,
    rules: Rules,
    *,
    isr: Sequence[NodeId] | None = None,
    lost: Collection[NodeId] = (),
    prefer_first: bool = False,
    recovered: bool = False,
) -> PartitionImage | None:
    """The partition after a wanted `isr` (None: as it is) and an election; None when nothing changes.

    `prefer_first` elects the first replica of the assignment if it is valid.
    """
    target = [n for n in (old.isr if isr is None else isr) if n not in lost]
    elr = _eligible(old, target, lost, rules)
    leader, unclean = _elect(old, rules, target, elr, prefer_first)
    if leader != NO_NODE and leader not in target:
        target = [leader]
    if len(target) >= min(rules.min_isr, len(old.replicas)) or unclean:
        elr = []
    recovering = (old.recovering and not recovered) or unclean
    new = replace(
        old,
        isr=tuple(target),
        elr=tuple(n for n in elr if n not in target),
        leader=leader,
        recovering=recovering,
        last_known_leader=leader if leader != NO_NODE else _last_known(old),
    )
    if new == old:
        return None
    epoch = LeaderEpoch(old.leader_epoch + (leader != old.leader))
    return replace(new, leader_epoch=epoch, partition_epoch=old.partition_epoch + 1)


def _last_known(old: PartitionImage) -> NodeId:
    return old.leader if old.leader != NO_NODE else old.last_known_leader


def _eligible(
    old: PartitionImage, target: Sequence[NodeId], lost: Collection[NodeId], rules: Rules
) -> list[NodeId]:
    if len(target) >= min(rules.min_isr, len(old.replicas)):
        return []
    candidates: Iterable[NodeId] = dict.fromkeys((*old.elr, *old.isr))
    return [n for n in candidates if n not in target and n not in lost]


def _elect(
    old: PartitionImage,
    rules: Rules,
    target: Sequence[NodeId],
    elr: Sequence[NodeId],
    prefer_first: bool,
) -> tuple[NodeId, bool]:
    """(leader, whether the election was unclean)."""
    pool = target or elr

    def valid(node_id: NodeId) -> bool:
        return node_id in pool and rules.active(node_id)

    if prefer_first and valid(old.replicas[0]):
        return old.replicas[0], False
    if valid(old.leader):
        return old.leader, False
    for node_id in old.replicas:
        if valid(node_id):
            return node_id, False
    if not pool:
        last = _last_known(old)
        if last in old.replicas and rules.active(last):
            return last, True
    if rules.unclean:
        for node_id in old.replicas:
            if rules.active(node_id):
                return node_id, True
    return NO_NODE, False
