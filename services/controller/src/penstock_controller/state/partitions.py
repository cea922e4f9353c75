"""How a partition's ISR, ELR and leader change: Kafka's PartitionChangeBuilder, with KIP-966.

Rules:
- The leader stays while it is valid: in the ISR (or, when the ISR is empty, in the
  ELR) and active. Else the first such replica in the assignment's order.
- Ours: a replica whose node's disk is full, or that is cordoned or drained, leads only where no
  other valid one does, be it the leader or the preferred one (decision 0023). Only the leader changes for it.
- Members that leave while the ISR falls below the effective min ISR become ELR: they
  hold everything acknowledged, because nothing is acknowledged below min ISR. With the
  ISR at min again the ELR is cleared.
- A replica known to have lost data (`lost`) leaves both.
- Nobody left in ISR and ELR: the last known leader, once it is active (as Kafka's
  last-known-leader recovery), or with unclean election on any active replica. Its data
  is then the truth, and the partition counts as recovering.
- Ours: a last known leader that comes back with another directory, or without its log, is none
  any more where there are other replicas: they would cut what they have down to what it has,
  nothing mostly (decision 0140).
- Every change of leader raises the leader epoch, every change the partition epoch.
- A reassignment (KIP-455) is done as soon as every replica that it aims at is in the ISR:
  those to be removed are then gone from replicas and ISR, in the same change. Until then
  the replication factor is that of before, so that a replica which is only being made
  does not count for min ISR.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock_core.config.topic import default_min_insync_replicas
from penstock_core.ids import NO_NODE, LeaderEpoch, NodeId
from penstock_core.metadata import PartitionImage


def _none(_node_id: NodeId) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Rules:
    """What an election depends on beside the partition."""

    active: Callable[[NodeId], bool]
    # min.insync.replicas as it is set; 0 where it is not, and the replication factor decides.
    min_isr: int
    unclean: bool = False
    # Nodes that lead only what nobody else can: their disk has no space left, or they are cordoned or drained.
    last_choice: Callable[[NodeId], bool] = _none

    def effective_min_isr(self, partition: PartitionImage) -> int:
        """Members of the ISR without which nothing is acknowledged: as the partition's leader reckons it.

        By partition: replication factors of a topic may differ, and one that is too high here
        would make an eligible leader of a replica that lacks acknowledged records.
        """
        factor = partition.factor
        return max(1, min(self.min_isr or default_min_insync_replicas(factor), factor))


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
    shape = _completed(old, target, rules)
    if shape is not old:
        target = [n for n in shape.replicas if n in target]
    elr = _eligible(shape, target, lost, rules)
    leader, unclean = _elect(shape, rules, target, elr, prefer_first)
    if leader != NO_NODE and leader not in target:
        target = [leader]
        shape = _completed(shape, target, rules)
    if len(target) >= rules.effective_min_isr(shape) or unclean:
        elr = []
    recovering = (old.recovering and not recovered) or unclean
    new = replace(
        shape,
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


def without_last_leader(state: PartitionImage, node_id: NodeId) -> PartitionImage | None:
    """The same without the memory that the node led it last. None where that would not elect the node anyway, and where
    it is the only replica, so that nobody has more."""
    if state.isr or state.elr or state.leader != NO_NODE or state.last_known_leader != node_id:
        return None
    return None if state.replicas == (node_id,) else replace(state, last_known_leader=NO_NODE)


def _last_known(old: PartitionImage) -> NodeId:
    return old.leader if old.leader != NO_NODE else old.last_known_leader


def _eligible(
    old: PartitionImage, target: Sequence[NodeId], lost: Collection[NodeId], rules: Rules
) -> list[NodeId]:
    if len(target) >= rules.effective_min_isr(old):
        return []
    candidates: Iterable[NodeId] = dict.fromkeys((*old.elr, *old.isr))
    return [n for n in candidates if n in old.replicas and n not in target and n not in lost]


def _completed(old: PartitionImage, isr: Sequence[NodeId], rules: Rules) -> PartitionImage:
    """The partition without the replicas that a reassignment removes, once it can do without them.

    Source: PartitionReassignmentReplicas.maybeCompleteReassignment. Ours: one of those that stay
    must be able to lead.
    """
    if not old.reassigning:
        return old
    staying = tuple(n for n in old.replicas if n not in old.removing_replicas)
    if not staying or not set(staying) <= set(isr) or not any(rules.active(n) for n in staying):
        return old
    return replace(old, replicas=staying, adding_replicas=(), removing_replicas=())


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

    candidates = [n for n in old.replicas if valid(n)]
    # The others, if there are any: a full leader refuses what another one could take.
    candidates = [n for n in candidates if not rules.last_choice(n)] or candidates
    if candidates:
        if old.leader in candidates and not (prefer_first and old.replicas[0] in candidates):
            return old.leader, False
        return candidates[0], False
    if not pool:
        last = _last_known(old)
        if last in old.replicas and rules.active(last):
            return last, True
    if rules.unclean:
        for node_id in sorted(old.replicas, key=rules.last_choice):
            if rules.active(node_id):
                return node_id, True
    return NO_NODE, False
