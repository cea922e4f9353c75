"""What authorizers tell the audit log: who, where from, in which request, and by which rule."""

from __future__ import annotations

from contextvars import copy_context
from typing import Any

import pytest

from penstock_core.metadata.image import MetadataImage
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.security.audit import Event
from penstock_core.security.principal import Identity, user
from penstock_frontend.audit import ASKING, Asking
from penstock_frontend.settings import KafkaServerSettings
from penstock_proto.v1 import metadata_pb2 as pb
from penstock_runtime.audit import Audit, More

ALICE = Identity(user("alice"), "192.0.2.1")
READ, WRITE, DESCRIBE = AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE
TOPIC = ResourceType.TOPIC


class Noted(Audit):
    writes = True

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def tell(self, event: Event, more: More | None = None) -> None:
        self.events.append({**event, **(more() if more is not None else {})})


def acl(name: str, permission: int, operation: AclOperation) -> pb.MetadataRecord:
    row = pb.AclRecord(
        resource_type=TOPIC,
        pattern_type=3,
        resource_name=name,
        principal="User:alice",
        host="*",
        operation=operation,
        permission=permission,
    )
    return pb.MetadataRecord(acl=row)


@pytest.fixture
def audit() -> Noted:
    return Noted()


def authorizer(audit: Audit, **settings: Any) -> Any:
    made = KafkaServerSettings(authorizer="acl", **settings).acl_authorizer(audit=audit)
    assert made is not None
    records = [acl("mine", 3, READ), acl("shut", 2, READ)]
    image = MetadataImage()
    made.metadata_changed(image, image.apply(records, 1), records)
    return made


def test_a_denial_says_who_what_and_by_which_rule(audit: Noted) -> None:
    decides = authorizer(audit)
    assert decides.authorize(ALICE, READ, TOPIC, "mine")
    assert not decides.authorize(ALICE, READ, TOPIC, "shut")
    assert not decides.allows(ALICE, READ, TOPIC, "other")  # it may be allowed another way
    decides.denied(ALICE, WRITE, TOPIC, "mine")
    common = {"event": "denied", "outcome": "denied", "principal": "User:alice", "address": "192.0.2.1"}
    first, second = audit.events
    assert "DENY" in first.pop("rule").upper()
    assert first == {**common, "operation": "read", "type": "topic", "resource": "shut"}
    assert second["rule"] == "no entry applies"


def test_the_request_is_named_if_it_is_that_of_who_asks(audit: Noted) -> None:
    decides = authorizer(audit)

    def ask(who: Identity) -> dict[str, Any]:
        ASKING.set(Asking(ALICE, "SECURE", "client-1", "SCRAM-SHA-512", "Produce"))
        decides.authorize(who, WRITE, TOPIC, "x")
        return audit.events[-1]

    named = copy_context().run(ask, ALICE)
    assert (named["listener"], named["client_id"], named["mechanism"], named["api"]) == (
        "SECURE",
        "client-1",
        "SCRAM-SHA-512",
        "Produce",
    )
    assert "listener" not in copy_context().run(ask, Identity(user("bob"), "192.0.2.1"))


def test_allowed_access_is_told_where_it_is_switched_on(audit: Noted) -> None:
    authorizer(audit).authorize(ALICE, READ, TOPIC, "mine")
    assert not audit.events
    decides = authorizer(audit, audit_access=True)
    assert decides.authorize(ALICE, READ, TOPIC, "mine")
    assert decides.allows(ALICE, READ, TOPIC, "mine")
    assert decides.allows(ALICE, DESCRIBE, TOPIC, "mine")  # no data
    assert [(each["event"], each["operation"], each["resource"]) for each in audit.events] == [
        ("access", "read", "mine")
    ] * 2
