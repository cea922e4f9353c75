"""Settings of every role that Kafka clients connect to: what one client, or one address, may take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from penstock_core.limits import KAFKA_FRAME_BYTES_CEILING, KAFKA_FRAME_BYTES_MAX
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.security.principal import Identity, parse_principal
from penstock_core.security.sasl import OAUTHBEARER
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.audit import RightsAudit, tell_connection_of_denial
from penstock_frontend.listener.admission import ConnectionCaps
from penstock_frontend.listener.limits import ListenerLimits
from penstock_kafka.wire.primitives import REQUEST_ITEMS_MAX
from penstock_runtime.audit import Audit
from penstock_runtime.door_settings import GrpcDoorSettings, HttpDoorSettings
from penstock_runtime.oauth_settings import OauthSettings
from penstock_runtime.settings import ListenerSettings, RoleSettings


class KafkaServerSettings(RoleSettings):
    """Bounds of Kafka listeners."""

    connections_max: int = Field(
        ConnectionCaps.connections_max,
        ge=1,
        description="most connections of each Kafka listener; idle ones of whoever has most make room",
    )
    connections_per_address_max: int = Field(
        ConnectionCaps.per_address_max, ge=1, description="most of them from one address"
    )
    new_connections_per_address_per_s: int = Field(
        ConnectionCaps.new_per_address_per_s,
        ge=1,
        description="most new connections to a Kafka listener from one address, each second",
    )
    new_connections_per_address_burst: int = Field(
        ConnectionCaps.new_per_address_burst, ge=1, description="how many of them may come at once"
    )
    socket_request_max_bytes: int = Field(
        KAFKA_FRAME_BYTES_MAX,
        ge=1024,
        le=KAFKA_FRAME_BYTES_CEILING,
        description="largest Kafka request that is taken, in bytes; a larger one closes its connection",
    )
    request_items_max: int = Field(
        REQUEST_ITEMS_MAX,
        ge=100,
        description="most items (topics, partitions, resources...) of one Kafka request but Produce and Fetch",
    )

    unauthenticated_request_max_bytes: int = Field(
        ListenerLimits.unauthenticated_frame_bytes_max,
        ge=1024,
        le=KAFKA_FRAME_BYTES_CEILING,
        description="largest Kafka request that is taken before its client has signed in, in bytes",
    )

    authorizer: Literal["none", "acl"] = Field(
        "none", description="acl: what a client may do is decided by the cluster's ACLs; none: everything"
    )
    super_users: list[str] = Field(
        default_factory=list,
        description="principals that may do everything, written as User:name; with authorizer = acl",
    )
    allow_everyone_if_no_acl_found: bool = Field(
        False, description="whether everybody may use what no ACL is about; with authorizer = acl"
    )

    audit_access: bool = Field(
        False,
        description="whether the audit log also has who read and wrote what, a count a second; with authorizer = acl",
    )
    sign_in_stale_ms: int = Field(
        5_000,
        ge=1_000,
        description="how long after the last word of a controller clients may still sign in, in ms",
    )
    rights_stale_ms: int = Field(
        30_000,
        ge=1_000,
        description="how long after it clients are still served whose users or rights the cluster decides, in ms",
    )
    oauth: OauthSettings | None = Field(
        None,
        description="whose tokens count (OAUTHBEARER, Bearer): issuer, audiences, jwks (file or https URL),"
        " jwks_ca, algorithms, principal_claim, jwks_refresh_ms, jwks_stale_ms",
    )

    http_door: HttpDoorSettings | None = Field(
        None,
        description="who may come by http_bind: security, tls, mechanisms, principal_mapping_rules,"
        " metrics_public, names",
    )

    @model_validator(mode="after")
    def _check_oauth(self) -> KafkaServerSettings:
        for listener in getattr(self, "listeners", ()):
            if OAUTHBEARER in listener.mechanisms and self.oauth is None:
                raise ValueError(
                    f"listener {listener.name}: OAUTHBEARER needs the table oauth: issuer, audiences, jwks"
                )
        if any(OAUTHBEARER in door.offered for door in self._doors()) and self.oauth is None:
            raise ValueError(
                "grpc_door, http_door: OAUTHBEARER needs the table oauth: issuer, audiences, jwks"
            )
        return self

    def _doors(self) -> list[GrpcDoorSettings | HttpDoorSettings]:
        """Those beside the listeners."""
        found = (getattr(self, name, None) for name in ("grpc_door", "http_door"))
        return [door for door in found if door is not None]

    @property
    def knows_callers(self) -> bool:
        """Whether clients sign in, show certificates, or have rights."""
        listeners: list[ListenerSettings] = getattr(self, "listeners", [])
        return (
            super().knows_callers
            or self.authorizer != "none"
            or any(each.has_sasl or (each.tls and each.tls.client_auth != "none") for each in listeners)
            or any(door.has_sasl or door.takes_certificates for door in self._doors())
        )

    @field_validator("super_users")
    @classmethod
    def _check_super_users(cls, value: list[str]) -> list[str]:
        for text in value:
            parse_principal(text)
        return value

    @property
    def stale_ms(self) -> tuple[int, int]:
        """How old the metadata may be for signing in, and for being served."""
        return self.sign_in_stale_ms, self.rights_stale_ms

    def acl_authorizer(self, log: Any = None, audit: Audit | None = None) -> AclAuthorizer | None:
        """What decides by ACLs, and tells `audit`; None where nobody's rights are looked at. It has to follow
        the metadata."""
        if self.authorizer == "none":
            return None
        supers = [parse_principal(text) for text in self.super_users]
        told = RightsAudit(audit or Audit())
        made = AclAuthorizer(
            supers,
            self.allow_everyone_if_no_acl_found,
            log=log,
            on_allowed=told.allowed if self.audit_access else None,
        )

        def denied(who: Identity, operation: AclOperation, kind: ResourceType, name: str) -> None:
            told.denied(who, operation, kind, name, lambda: made.why(who, operation, kind, name))
            tell_connection_of_denial(who)

        made.on_denied = denied
        return made

    def listener_limits(self, limits: ListenerLimits | None = None) -> ListenerLimits:
        """These settings, the rest as in `limits` (the defaults)."""
        return replace(
            limits or ListenerLimits(),
            frame_bytes_max=self.socket_request_max_bytes,
            request_items_max=self.request_items_max,
            unauthenticated_frame_bytes_max=self.unauthenticated_request_max_bytes,
            caps=ConnectionCaps(
                connections_max=self.connections_max,
                per_address_max=self.connections_per_address_max,
                new_per_address_per_s=self.new_connections_per_address_per_s,
                new_per_address_burst=self.new_connections_per_address_burst,
            ),
        )
