"""Feature levels: raised once every process understands them, and asked of everyone who registers.

Source: KIP-584, FeatureControlManager of Apache Kafka 4.3. What levels mean is said in
penstock_core.metadata.levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock_controller.state.causes import cause
from penstock_controller.state.generation import Context, Generated, error_pb
from penstock_controller.state.session_keys import newest_key, next_key
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.limits import FEATURE_LEVEL, WHOLE_BATCH_BYTES_MAX
from penstock_core.metadata import MetadataImage
from penstock_core.metadata.levels import (
    MARKED_LEVEL,
    METADATA_LEVEL,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_MAX,
    TRANSACTIONS_LEVEL,
    level_of,
    require_level,
    too_old,
    understood,
)
from penstock_core.metadata.security import SIGN_IN_KEY
from penstock_proto.v1 import common_pb2 as common
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

ControllerLevels = Mapping[int, int | None]
"""Level that each controller understands, by its id; None for one that did not answer."""

_NAMED_MAX = 5


def update_features(
    ctx: Context, request: api.UpdateFeaturesRequest, controllers: ControllerLevels
) -> Generated[api.UpdateFeaturesResponse]:
    """Set levels of features. All updates count or none, each on top of those before it; the response names what is
    in the way of each."""
    reply = api.UpdateFeaturesResponse()
    records: list[pb.MetadataRecord] = []
    levels = dict(ctx.image.features) | {METADATA_LEVEL: level_of(ctx.image)}
    for update in request.updates:
        result = reply.results.add()
        try:
            _check(ctx.image, levels, update, controllers)
        except PenstockError as error:
            result.CopyFrom(error_pb(error))
            if not reply.error.code:
                reply.error.CopyFrom(error_pb(error))
            continue
        if levels.get(update.name, 0) != update.level:
            is_level = update.name == METADATA_LEVEL
            records += level_records(ctx, update.level) if is_level else [_feature(ctx, update)]
        levels[update.name] = update.level
    if reply.error.code or request.validate_only:
        records = []
    return Generated(reply, records, causes=cause("level", "cluster", principal=request.principal))


def level_records(ctx: Context, level: int) -> list[pb.MetadataRecord]:
    """What brings the cluster to `level`: the feature, and what every cluster of that level has."""
    if level < 2:
        return [pb.MetadataRecord(feature=pb.FeatureRecord(name=METADATA_LEVEL, level=level))]
    records = [
        pb.MetadataRecord(feature=pb.FeatureRecord(name=METADATA_LEVEL, level=level, version=ctx.version))
    ]
    if level >= MARKED_LEVEL:
        records.append(pb.MetadataRecord(level_mark=pb.LevelMarkRecord()))
    if SIGN_IN_KEY not in ctx.image.security.secrets:
        secret = pb.ClusterSecretRecord(name=SIGN_IN_KEY, value=ctx.rng.randbytes(32))
        records.append(pb.MetadataRecord(cluster_secret=secret))
    if not newest_key(ctx.image):
        records += next_key(ctx)
    return records


def refusal(image: MetadataImage, process: common.ProcessInfo) -> common.Error | None:
    """What a process gets that wants to register and does not understand the cluster's level."""
    error = too_old(image, process.feature_level)
    return None if error is None else error_pb(error)


def require_batch_level(image: MetadataImage, configs: Mapping[str, str]) -> None:
    """Raises UNSUPPORTED_VERSION for batches that go in pieces (decision 0026) while an older build may have to
    take them. Validated settings only."""
    if int(configs.get("max.message.bytes", 0)) > WHOLE_BATCH_BYTES_MAX:
        require_level(image, 2, f"batches above {WHOLE_BATCH_BYTES_MAX} bytes (max.message.bytes)")


def new_cluster_records(ctx: Context, level: int) -> list[pb.MetadataRecord]:
    """The features of a cluster that is founded at `level`."""
    records = level_records(ctx, level)
    if level >= TRANSACTIONS_LEVEL:
        newest = api.FeatureUpdate(name=TRANSACTION_VERSION, level=TRANSACTION_VERSION_MAX)
        records.append(_feature(ctx, newest))
    return records


def _feature(ctx: Context, update: api.FeatureUpdate) -> pb.MetadataRecord:
    return pb.MetadataRecord(
        feature=pb.FeatureRecord(name=update.name, level=update.level, version=ctx.version)
    )


def _check(
    image: MetadataImage,
    levels: Mapping[str, int],
    update: api.FeatureUpdate,
    controllers: ControllerLevels,
) -> None:
    """`levels` by name, as they are after the updates before this one."""
    if update.name == METADATA_LEVEL:
        _check_level(image, levels[METADATA_LEVEL], update, controllers)
    elif update.name == TRANSACTION_VERSION:
        _check_transactions(levels, update)
    else:
        raise PenstockError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"the controller does not support the given feature: {update.name}; "
            f"it has {METADATA_LEVEL} and {TRANSACTION_VERSION}",
        )


def _check_transactions(levels: Mapping[str, int], update: api.FeatureUpdate) -> None:
    now = levels.get(TRANSACTION_VERSION, 0)
    problem = ""
    if update.level > TRANSACTION_VERSION_MAX:
        problem = f"there is none above {TRANSACTION_VERSION_MAX}"
    elif levels[METADATA_LEVEL] < TRANSACTIONS_LEVEL:
        problem = (
            f"it needs {METADATA_LEVEL} {TRANSACTIONS_LEVEL}, the cluster has {levels[METADATA_LEVEL]}; "
            "run `penstock cluster upgrade` first"
        )
    elif update.level < now and not update.allow_downgrade:
        problem = f"it is {now}, and does not go back unless a downgrade is asked for"
    elif update.level > now and update.allow_downgrade:
        problem = f"it is {now}: this is no downgrade"
    if problem:
        raise PenstockError(
            ErrorCode.INVALID_UPDATE_VERSION, f"{TRANSACTION_VERSION} {update.level}: {problem}"
        )


def _check_level(
    image: MetadataImage, now: int, update: api.FeatureUpdate, controllers: ControllerLevels
) -> None:
    if update.level < now:
        raise PenstockError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{METADATA_LEVEL} cannot go back from {now} to {update.level}: what it brought may be in the log",
        )
    if update.level > FEATURE_LEVEL:
        raise PenstockError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"this build understands {METADATA_LEVEL} up to {FEATURE_LEVEL}, not {update.level}; "
            "upgrade the controllers first",
        )
    behind = list(_behind(image, update.level, controllers))
    if behind:
        more = f" and {len(behind) - _NAMED_MAX} more" if len(behind) > _NAMED_MAX else ""
        raise PenstockError(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"{METADATA_LEVEL} {update.level} has to wait for {', '.join(behind[:_NAMED_MAX])}{more}; "
            "upgrade or unregister them first",
        )


def _behind(image: MetadataImage, level: int, controllers: ControllerLevels) -> Iterator[str]:
    """Processes that would not understand `level`, in words."""
    for controller_id, knows in sorted(controllers.items()):
        if knows is None:
            yield f"controller {controller_id} (it does not answer)"
        elif knows < level:
            yield f"controller {controller_id} (it understands {knows})"
    for node_id, node in sorted(image.nodes.items()):
        if understood(node.feature_level) < level:
            yield f"storage node {node_id} (it understands {understood(node.feature_level)})"
    for gateway_id, gateway in sorted(image.gateways.items()):
        knows = understood(gateway.record.process.feature_level)
        if knows < level:
            yield f"gateway {gateway_id} (it understands {knows})"
