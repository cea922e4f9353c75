"""What belongs to the cluster as a whole: its id and feature level, and the producer ids it has given out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from penstock_controller.state import users
from penstock_controller.state.features import new_cluster_records
from penstock_controller.state.generation import Context, Generated
from penstock_core.limits import FEATURE_LEVEL, PRODUCER_ID_BLOCK_COUNT
from penstock_core.security.bootstrap_users import BootstrapUser
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb


def founding_level(linked: Iterable[int], levels: Mapping[int, int | None]) -> tuple[int, tuple[int, ...]]:
    """The level that a new cluster begins with: the lowest of its controllers that are there; and which of them have
    yet to say theirs. `levels`: by id, None for one that did not answer."""
    said = {i: levels.get(i) for i in linked}
    known = [level for level in said.values() if level is not None]
    return min((*known, FEATURE_LEVEL)), tuple(sorted(i for i, level in said.items() if level is None))


def found_cluster(
    ctx: Context, feature_level: int, first_users: Sequence[BootstrapUser] = ()
) -> Generated[bool]:
    """The very first command: who this cluster is, and its first users. The reply says whether it was needed."""
    if ctx.image.cluster_id:
        return Generated(False)
    cluster_id = ctx.rng.randbytes(16)
    return Generated(
        True,
        [
            pb.MetadataRecord(cluster=pb.ClusterRecord(cluster_id=cluster_id)),
            *new_cluster_records(ctx, feature_level),
            *(users.record_of(each.user, each.credential, ctx.version) for each in first_users),
        ],
    )


def allocate_producer_ids(
    ctx: Context, request: api.AllocateProducerIdsRequest
) -> Generated[api.AllocateProducerIdsResponse]:
    """A block of ids that nobody else gets (KIP-730)."""
    first = ctx.image.next_producer_id
    record = pb.ProducerIdsRecord(next_producer_id=first + PRODUCER_ID_BLOCK_COUNT)
    reply = api.AllocateProducerIdsResponse(first_producer_id=first, count=PRODUCER_ID_BLOCK_COUNT)
    return Generated(reply, [pb.MetadataRecord(producer_ids=record)])
