"""Secure clusters: TLS between all processes, listeners where clients sign in, rights on.

What `penstock local up --secure` makes (`penstock.local.secure`), with two things more: certificates that hold in
network namespaces too, and a user who may do what the load does and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import grpc
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.certificate_making import Leaf
from penstock.certificates import CertificateAuthority
from penstock.connector import Connector, load
from penstock.local import plan, secure
from penstock.local.plan import ClusterState
from penstock_core.process.credentials import load_client_file
from support.kafka import CALL_TIMEOUT_S, client_config
from support.waiting import wait_for

USER, PASSWORD = "load", "of-the-chaos-load"
ANSWER_TIMEOUT_S = 60.0
Settings = dict[str, str]
"""A client's, by librdkafka's names."""


def prepare(directory: Path, state: ClusterState, hosts: dict[str, str]) -> None:
    """Certificates and the admin. `hosts`: where each process is, by name, if not on loopback."""
    secure.prepare(directory, state)
    if hosts:
        authority = CertificateAuthority(secure.directory_of(directory))
        authority.issue_all(
            [Leaf(m.role, plan.certificate_name(m), (*secure.NAMES, hosts[m.name])) for m in state.members]
        )


def admin_file(directory: Path) -> Path:
    """What a command of the admin's comes in with."""
    return secure.admin_file(directory)


def admin_connector(directory: Path) -> Connector:
    """For probes."""
    return load(admin_file(directory))


def admin_settings(directory: Path) -> Settings:
    """The admin's, without addresses."""
    settings = load_client_file(admin_file(directory)).librdkafka()
    del settings["bootstrap.servers"]
    return settings


def load_settings(directory: Path) -> Settings:
    """The load's."""
    return admin_settings(directory) | {"sasl.username": USER, "sasl.password": PASSWORD}


def controller_channel(directory: Path, address: str) -> grpc.Channel:
    """To a controller, with the admin's certificate."""
    made = secure.admin_certificate(directory)
    credentials = grpc.ssl_channel_credentials(
        *((made / f"{name}.pem").read_bytes() for name in ("ca", "key", "cert"))
    )
    override = ("grpc.ssl_target_name_override", f"{plan.CONTROLLER}.{secure.DOMAIN}")
    return grpc.secure_channel(address, credentials, options=[override])


def make_user(bootstrap: str, directory: Path) -> None:
    """The user of the load, and its rights: topics of all names, and nothing of the cluster."""
    admin = AdminClient(client_config(bootstrap, **admin_settings(directory)))
    credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    rights = [
        AclBinding(
            ResourceType.TOPIC,
            "*",
            ResourcePatternType.LITERAL,
            f"User:{USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in (AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE)
    ]

    def made() -> bool:
        try:
            users = admin.alter_user_scram_credentials(
                [UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())],
                request_timeout=CALL_TIMEOUT_S,
            )
            acls = admin.create_acls(rights, request_timeout=CALL_TIMEOUT_S)
            for future in (*users.values(), *acls.values()):
                future.result(ANSWER_TIMEOUT_S)
        except KafkaException:
            return False  # somebody is still on the way
        return True

    wait_for(made, f"user {USER}")
