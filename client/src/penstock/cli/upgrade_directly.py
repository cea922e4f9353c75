"""Levels asked of the controllers themselves and set there: what `penstock cluster upgrade` does where no gateway knows
operations."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.controller import CALL_TIMEOUT_MS, Seen, look, user_name
from penstock.errors import CommandError, ExitCode

if TYPE_CHECKING:
    from penstock_core.metadata import MetadataImage
    from penstock_runtime.controller_client import ControllerClient

_IMAGE_TIMEOUT_MS: Final = 15_000
_NAMED_MAX: Final = 5
IN_THE_WAY: Final = "in the way"
READY: Final = "ready"


@dataclass(frozen=True)
class Process:
    """One process of the cluster, as it is planned for."""

    role: str
    name: str
    version: str | None
    level: int | None
    """Level that it understands at most; None where it does not answer."""
    state: str

    @property
    def words(self) -> str:
        """Its name, and why it is in the way."""
        why = "does not answer" if self.level is None else f"understands level {self.level}"
        return f"{self.role} {self.name} ({why})"


@dataclass(frozen=True)
class Plan:
    """What is to be done."""

    now: int
    wanted: int
    processes: list[Process]

    @property
    def in_the_way(self) -> list[Process]:
        """Those that would not understand the metadata any more."""
        return [process for process in self.processes if process.state == IN_THE_WAY]


def problem_of(plan: Plan) -> CommandError | None:
    """Why the level cannot be reached; None where it can, or is there."""
    if plan.wanted < plan.now:
        return CommandError(
            f"metadata.level is {plan.now} and cannot go back to {plan.wanted}: what it brought may be in the log"
        )
    behind = plan.in_the_way
    if plan.wanted == plan.now or not behind:
        return None
    more = f" and {len(behind) - _NAMED_MAX} more" if len(behind) > _NAMED_MAX else ""
    return CommandError(
        f"metadata.level {plan.wanted} has to wait for {', '.join(p.words for p in behind[:_NAMED_MAX])}{more}; "
        "install a newer build there, or take them out of the cluster"
    )


async def plan_directly(client: ControllerClient, level: int | None) -> Plan:
    """What every process says, as the controllers tell it."""
    from penstock_core.limits import FEATURE_LEVEL
    from penstock_core.metadata.levels import level_of

    seen = await look(client)
    image = await _image(client, max(answer.version for answer in seen.said.values()))
    wanted = FEATURE_LEVEL if level is None else level
    return Plan(level_of(image), wanted, _processes(seen, image, wanted))


def _processes(seen: Seen, image: MetadataImage, wanted: int) -> list[Process]:
    from penstock_core.metadata.levels import understood

    def process(role: str, name: str, version: str, level: int) -> Process:
        knows = understood(level)
        return Process(role, name, version or None, knows, READY if knows >= wanted else IN_THE_WAY)

    found = []
    for member in sorted(seen.best.members, key=lambda m: m.controller_id):
        own = seen.said.get(member.controller_id)
        if own is None:
            found.append(Process("controller", str(member.controller_id), None, None, IN_THE_WAY))
        else:
            own_level = own.process.feature_level
            found.append(process("controller", str(member.controller_id), own.process.version, own_level))
    for node_id, node in sorted(image.nodes.items()):
        found.append(process("storage node", str(node_id), node.version, node.feature_level))
    for gateway_id, gateway in sorted(image.gateways.items()):
        info = gateway.record.process
        found.append(process("gateway", gateway_id, info.version, info.feature_level))
    return found


async def _image(client: ControllerClient, version: int) -> MetadataImage:
    """The metadata of that version or a later one: what comes first may be their beginnings. Raises UNREACHABLE."""
    from penstock_runtime.metadata_client import MetadataClient

    metadata = MetadataClient(client, "cli", lambda: time.monotonic_ns() // 1_000_000)
    following = asyncio.create_task(metadata.run())
    try:
        if not await metadata.wait_for_version(max(version, 1), _IMAGE_TIMEOUT_MS):
            raise CommandError(
                "no controller tells its metadata: is a majority of the controllers there "
                "(`penstock controller list`), and is this command as new as they are?",
                ExitCode.UNREACHABLE,
            )
        return metadata.image
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def raise_directly(client: ControllerClient, level: int) -> Any:
    """Set the level. Raises CommandError."""
    from penstock_core.errors import PenstockError
    from penstock_core.metadata.levels import METADATA_LEVEL
    from penstock_proto.v1 import controller_pb2 as pb

    request = pb.UpdateFeaturesRequest(
        updates=[pb.FeatureUpdate(name=METADATA_LEVEL, level=level)], principal=f"cli:{user_name()}"
    )
    try:
        reply = await client.call("UpdateFeatures", request, CALL_TIMEOUT_MS)
    except PenstockError as error:
        raise CommandError(
            f"{error.message}; a majority of the controllers must run", ExitCode.UNREACHABLE
        ) from None
    if reply.error.code:
        raise CommandError(reply.error.message)
