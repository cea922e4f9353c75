"""Which data directory makes each controller a voter.

The first directory of a controller is taken down when it has joined. Any other one is
admitted by an operator alone (`penstock controller replace`), because a directory that is
new may stand for votes and entries that were lost with the old one: admitted by itself, it
could help to elect a controller without acknowledged entries. The record is an entry of
the log, so a controller that has applied it holds everything acknowledged before
(rule "A controller that lost its disk"), and only then it votes.

Source: KIP-853, where a voter is known by id and directory id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock_controller.state.causes import cause
from penstock_controller.state.generation import Context, Generated, make_error
from penstock_core.errors import ErrorCode
from penstock_core.metadata import MetadataImage
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb


class Connected(NamedTuple):
    """What a controller that is there said of itself."""

    directory_id: bytes
    joined: bool


class QuorumView(NamedTuple):
    """The quorum as the active controller sees it at this moment."""

    controller_id: int
    # Ids in raft_peers.
    members: frozenset[int]
    # This controller included.
    connected: Mapping[int, Connected]


def unrecorded(image: MetadataImage, view: QuorumView) -> dict[int, bytes]:
    """Controllers that have joined and whose directory the metadata do not know yet."""
    return {
        controller_id: said.directory_id
        for controller_id, said in view.connected.items()
        if said.joined and controller_id not in image.controllers
    }


def record_controllers(ctx: Context, directories: Mapping[int, bytes]) -> Generated[bool]:
    """Take down the first directories; what is recorded by now stays."""
    records = [
        pb.MetadataRecord(controller=pb.ControllerRecord(controller_id=i, directory_id=directory_id))
        for i, directory_id in sorted(directories.items())
        if i not in ctx.image.controllers
    ]
    return Generated(bool(records), records)


def replace_controller(
    ctx: Context, request: api.ReplaceControllerRequest, view: QuorumView
) -> Generated[api.ReplaceControllerResponse]:
    """Admit the directory with which a controller is connected; refused wherever that is not safe."""
    controller_id = request.controller_id
    old = ctx.image.controllers.get(controller_id, b"")
    said = view.connected.get(controller_id)
    reply = api.ReplaceControllerResponse(old_directory_id=old)
    if request.directory_id and request.directory_id == old:
        # Asked again: the answer was lost.
        reply.new_directory_id = old
        return Generated(reply)
    reason = unfit(ctx.image, controller_id, request.directory_id, view) or absent_voters(
        ctx.image, controller_id, view
    )
    if reason or said is None:
        reply.error.CopyFrom(make_error(ErrorCode.INVALID_REQUEST, reason))
        return Generated(reply)
    reply.new_directory_id = said.directory_id
    why = cause("replace", f"controller {controller_id}", principal=request.principal)
    return Generated(reply, [admission(controller_id, said.directory_id)], causes=why)


def admission(controller_id: int, directory_id: bytes) -> pb.MetadataRecord:
    """The record with which a controller votes with a directory, and with no other one."""
    return pb.MetadataRecord(
        controller=pb.ControllerRecord(controller_id=controller_id, directory_id=directory_id)
    )


def unfit(image: MetadataImage, controller_id: int, directory_id: bytes, view: QuorumView) -> str:
    """Why there is nothing to replace, or nothing to replace it with, and the mend; "" when there is.

    `directory_id`: the one that is meant; empty for any.
    """
    if controller_id not in view.members:
        members = ", ".join(str(i) for i in sorted(view.members))
        return f"controller {controller_id} is not in raft_peers ({members}); name one of these"
    said = view.connected.get(controller_id)
    if said is None:
        return (
            f"controller {controller_id} is not there: start it with an empty data_dir, "
            "so that the quorum sees its new directory, then replace it"
        )
    if is_voter(image, controller_id, said):
        return (
            f"controller {controller_id} is alive with the data directory that it votes with "
            f"({said.directory_id.hex()}): nothing is to be replaced. To change its disk, stop it, "
            "start it with an empty data_dir, then replace it"
        )
    if directory_id and directory_id != said.directory_id:
        return (
            f"controller {controller_id} came with directory {said.directory_id.hex()}, not "
            f"{directory_id.hex()}; look at `penstock controller list`"
        )
    return ""


def absent_voters(image: MetadataImage, controller_id: int, view: QuorumView) -> str:
    """Why too few others are there to commit a controller's admission, and the mend; "" when there are enough."""
    others = sorted(view.members - {controller_id})
    there = [i for i in others if i in view.connected and is_voter(image, i, view.connected[i])]
    needed = len(view.members) // 2 + 1
    if others and len(there) < needed:
        absent = ", ".join(str(i) for i in others if i not in there)
        return (
            f"only {len(there)} of the {needed} other voters that make a majority are there (not controller "
            f"{absent}); start them first, or what only they hold could be lost"
        )
    return ""


def is_voter(image: MetadataImage, controller_id: int, said: Connected) -> bool:
    """Whether a controller that is connected with this directory counts as a full member."""
    admitted = image.controllers.get(controller_id)
    return said.joined if admitted is None else admitted == said.directory_id
