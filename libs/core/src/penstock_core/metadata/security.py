"""Users, rights, quotas and secrets as the metadata holds them (since `metadata.level` 2).

A part of the image of its own: when a right changes no map of topics is copied, and who has compiled
something from the rights sees by identity that they are another object.

What the fields mean is said in the contract (metadata.proto); what they decide, in penstock_core.security.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from penstock_core.errors import InvariantBroken
from penstock_core.security.quota_entities import QuotaEntity
from penstock_proto.v1 import metadata_pb2 as pb

SIGN_IN_KEY: Final = "sign-in"
"""The secret from which salts of users that there are not are made, so that nobody learns which there are."""


class CredentialKey(NamedTuple):
    """Whose credential, and for which SCRAM mechanism (Kafka's code: 1 SHA-256, 2 SHA-512)."""

    user: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class UserCredential:
    """What a user proves itself by with one SCRAM mechanism; see UserCredentialRecord."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int
    version: int


class AclRow(NamedTuple):
    """One rule, in Kafka's codes and spelling; see AclRecord."""

    resource_type: int
    pattern_type: int
    resource_name: str
    principal: str
    host: str
    operation: int
    permission: int

    @classmethod
    def from_pb(cls, r: pb.AclRecord) -> AclRow:
        """The rule of a record."""
        return cls(
            r.resource_type,
            r.pattern_type,
            r.resource_name,
            r.principal,
            r.host,
            r.operation,
            r.permission,
        )

    def to_pb(self) -> pb.AclRecord:
        """The record of the rule."""
        return pb.AclRecord(**self._asdict())


def _quota_entity(r: pb.QuotaRecord) -> QuotaEntity:
    return QuotaEntity(
        r.user if r.HasField("user") else None,
        r.client_id if r.HasField("client_id") else None,
        r.ip if r.HasField("ip") else None,
    )


def quota_record(entity: QuotaEntity, key: str, value: float | None) -> pb.QuotaRecord:
    """The record that sets a quota of the entity; without a value it removes it."""
    return pb.QuotaRecord(user=entity.user, client_id=entity.client_id, ip=entity.ip, key=key, value=value)


class RefusedCertificate(NamedTuple):
    """Why a certificate is let in no more; see RefusedCertificateRecord."""

    reason: str
    not_after_ms: int


@dataclass(frozen=True, slots=True)
class SecurityImage:
    """All of it, as of one metadata version. Treat every map as read-only."""

    credentials: Mapping[CredentialKey, UserCredential] = field(default_factory=dict)
    # An ordered set: snapshots of equal images are equal.
    acls: Mapping[AclRow, None] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    # By serial number in lower-case hex.
    refused_certificates: Mapping[str, RefusedCertificate] = field(default_factory=dict)

    def to_records(self) -> Iterator[pb.MetadataRecord]:
        """Records that, applied to an empty image, give this one back."""
        for key, credential in self.credentials.items():
            yield pb.MetadataRecord(
                user_credential=pb.UserCredentialRecord(
                    user=key.user,
                    mechanism=key.mechanism,
                    salt=credential.salt,
                    stored_key=credential.stored_key,
                    server_key=credential.server_key,
                    iterations=credential.iterations,
                    version=credential.version,
                )
            )
        for acl in self.acls:
            yield pb.MetadataRecord(acl=acl.to_pb())
        for entity, limits in self.quotas.items():
            for name, value in limits.items():
                yield pb.MetadataRecord(quota=quota_record(entity, name, value))
        for name, secret in self.secrets.items():
            yield pb.MetadataRecord(cluster_secret=pb.ClusterSecretRecord(name=name, value=secret))
        for serial, refused in self.refused_certificates.items():
            yield pb.MetadataRecord(
                refused_certificate=pb.RefusedCertificateRecord(
                    serial=serial, reason=refused.reason, not_after_ms=refused.not_after_ms
                )
            )


class SecurityBuilder:
    """Replays the records of this part onto private copies of the maps that they touch."""

    def __init__(self, base: SecurityImage) -> None:
        self._base = base
        self._credentials: dict[CredentialKey, UserCredential] | None = None
        self._acls: dict[AclRow, None] | None = None
        self._quotas: dict[QuotaEntity, Mapping[str, float]] | None = None
        self._secrets: dict[str, bytes] | None = None
        self._refused: dict[str, RefusedCertificate] | None = None

    def finish(self) -> SecurityImage:
        """The image with what was replayed."""
        base = self._base
        return SecurityImage(
            credentials=base.credentials if self._credentials is None else self._credentials,
            acls=base.acls if self._acls is None else self._acls,
            quotas=base.quotas if self._quotas is None else self._quotas,
            secrets=base.secrets if self._secrets is None else self._secrets,
            refused_certificates=base.refused_certificates if self._refused is None else self._refused,
        )

    def credential(self, r: pb.UserCredentialRecord) -> None:
        """Set a credential."""
        self._own_credentials()[CredentialKey(r.user, r.mechanism)] = UserCredential(
            r.salt, r.stored_key, r.server_key, r.iterations, r.version
        )

    def credential_removed(self, r: pb.UserCredentialRemovedRecord) -> None:
        """Delete one."""
        if self._own_credentials().pop(CredentialKey(r.user, r.mechanism), None) is None:
            raise InvariantBroken(f"removed credential of {r.user!r} is not there")

    def acl(self, r: pb.AclRecord) -> None:
        """Add a rule."""
        self._own_acls()[AclRow.from_pb(r)] = None

    def acl_removed(self, r: pb.AclRemovedRecord) -> None:
        """Take a rule away."""
        row = AclRow.from_pb(r.acl)
        if row not in self._own_acls():
            raise InvariantBroken(f"removed ACL {row} is not there")
        del self._own_acls()[row]

    def quota(self, r: pb.QuotaRecord) -> None:
        """Set or remove a quota."""
        if self._quotas is None:
            self._quotas = dict(self._base.quotas)
        entity = _quota_entity(r)
        limits = dict(self._quotas.get(entity, {}))
        if r.HasField("value"):
            limits[r.key] = r.value
        else:
            limits.pop(r.key, None)
        if limits:
            self._quotas[entity] = limits
        else:
            self._quotas.pop(entity, None)

    def secret(self, r: pb.ClusterSecretRecord) -> None:
        """Set or remove a secret."""
        if self._secrets is None:
            self._secrets = dict(self._base.secrets)
        if r.value:
            self._secrets[r.name] = r.value
        else:
            self._secrets.pop(r.name, None)

    def refused_certificate(self, r: pb.RefusedCertificateRecord) -> None:
        """Refuse a certificate, or take that back."""
        if self._refused is None:
            self._refused = dict(self._base.refused_certificates)
        if r.removed:
            self._refused.pop(r.serial, None)
        else:
            self._refused[r.serial] = RefusedCertificate(r.reason, r.not_after_ms)

    def _own_credentials(self) -> dict[CredentialKey, UserCredential]:
        if self._credentials is None:
            self._credentials = dict(self._base.credentials)
        return self._credentials

    def _own_acls(self) -> dict[AclRow, None]:
        if self._acls is None:
            self._acls = dict(self._base.acls)
        return self._acls
