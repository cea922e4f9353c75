"""What users prove themselves by: SCRAM credentials in the metadata (KIP-554).

Changes of one user count all together or not at all, those of different users on their own.

Source: ScramControlManager of Apache Kafka 4.3. Unlike there one request may change both mechanisms of a user,
as kafka-configs asks for when it is given two, and the keys are made before they come here, so
a salted password, which is as good as the password, is never sent on nor written.
"""

from __future__ import annotations

from collections import Counter

from penstock_controller.state.generation import Context, Generated, error_pb
from penstock_core.errors import ErrorCode, PenstockError
from penstock_core.metadata.levels import require_level
from penstock_core.metadata.security import CredentialKey
from penstock_core.security.scram import ScramCredential, ScramMechanism, check_alteration
from penstock_proto.v1 import controller_pb2 as api
from penstock_proto.v1 import metadata_pb2 as pb

LEVEL = 2
USER_LENGTH_MAX = 255
"""Characters of a name: it stands in every audit line and in the key of every limit."""
SALT_BYTES_MAX = 256


def alter_user_credentials(
    ctx: Context, request: api.AlterUserCredentialsRequest
) -> Generated[api.AlterUserCredentialsResponse]:
    """Set and delete credentials."""
    reply = api.AlterUserCredentialsResponse()
    try:
        require_level(ctx.image, LEVEL, "users")
    except PenstockError as error:
        return Generated(api.AlterUserCredentialsResponse(error=error_pb(error)))
    times = Counter((change.user, change.mechanism) for change in request.changes)
    failed: dict[str, PenstockError] = {}
    for change in request.changes:
        try:
            if times[change.user, change.mechanism] > 1:
                raise PenstockError(
                    ErrorCode.DUPLICATE_RESOURCE,
                    "A user credential cannot be altered twice in the same request: "
                    f"user {change.user!r} stands there twice with one mechanism",
                )
            _check(ctx, change)
        except PenstockError as error:
            failed.setdefault(change.user, error)
    records = []
    for change in request.changes:
        problem = failed.get(change.user)
        result = reply.results.add()
        if problem is not None:
            result.CopyFrom(error_pb(problem))
        else:
            records.append(_record(ctx, change))
    return Generated(reply, records)


def _check(ctx: Context, change: api.UserCredentialChange) -> None:
    mechanism = check_alteration(change.user, change.mechanism, None if change.remove else change.iterations)
    if len(change.user) > USER_LENGTH_MAX:
        raise PenstockError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"the user's name has {len(change.user)} characters; {USER_LENGTH_MAX} are allowed",
        )
    if change.remove:
        if CredentialKey(change.user, mechanism) not in ctx.image.security.credentials:
            raise PenstockError(
                ErrorCode.RESOURCE_NOT_FOUND,
                "Attempt to delete a user credential that does not exist: "
                f"user {change.user!r} has none for {mechanism.mechanism_name}",
            )
        return
    if not 0 < len(change.salt) <= SALT_BYTES_MAX:
        raise PenstockError(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"the salt of {change.user!r} has {len(change.salt)} bytes; 1 to {SALT_BYTES_MAX} are allowed",
        )
    for name, key in (("stored", change.stored_key), ("server", change.server_key)):
        if len(key) != mechanism.key_bytes:
            raise PenstockError(
                ErrorCode.UNACCEPTABLE_CREDENTIAL,
                f"the {name} key of {change.user!r} has {len(key)} bytes; "
                f"{mechanism.mechanism_name} has {mechanism.key_bytes}",
            )


def _record(ctx: Context, change: api.UserCredentialChange) -> pb.MetadataRecord:
    if change.remove:
        removed = pb.UserCredentialRemovedRecord(user=change.user, mechanism=change.mechanism)
        return pb.MetadataRecord(user_credential_removed=removed)
    made = ScramCredential(
        ScramMechanism(change.mechanism),
        change.salt,
        change.stored_key,
        change.server_key,
        change.iterations,
    )
    return record_of(change.user, made, ctx.version)


def record_of(user: str, made: ScramCredential, version: int) -> pb.MetadataRecord:
    """The record of a user's credential. `version`: that of the command that it is part of."""
    return pb.MetadataRecord(
        user_credential=pb.UserCredentialRecord(
            user=user,
            mechanism=made.mechanism,
            salt=made.salt,
            stored_key=made.stored_key,
            server_key=made.server_key,
            iterations=made.iterations,
            version=version,
        )
    )
