"""What doors beside the listeners tell the audit log."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from penstock_core.security.audit import Event
from penstock_frontend.listener.metrics import KafkaMetrics
from penstock_frontend.sign_in.callers import CallerDoor, NotLetIn
from penstock_frontend.sign_in.desk import SignInDesk
from penstock_runtime.audit import Audit
from penstock_runtime.door_settings import HttpDoorSettings
from penstock_runtime.logs import get_log
from support.sign_in import Metadata, user_record


class Noted(Audit):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def tell(self, event: Event, more: Any = None) -> None:
        self.events.append(event)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


async def test_who_came_who_did_not_and_who_said_nothing() -> None:
    metadata, audit = Metadata(), Noted()
    metadata.apply(user_record("alice", "secret"))
    desk = SignInDesk(lambda: metadata.image, KafkaMetrics(), get_log())
    settings = HttpDoorSettings(security="SASL_PLAINTEXT", mechanisms=("PLAIN",))
    door = CallerDoor("http", settings, desk, lambda: metadata.image, settings.offered, audit=audit)
    where = "192.0.2.1"
    assert (await door.caller(basic("alice", "secret"), None, where)).principal.name == "alice"
    for said in (basic("alice", "wrong"), "Bearer pst1.forged", None, "Digest x"):
        with pytest.raises(NotLetIn):
            await door.caller(said, None, where)
    await desk.passwords.close()
    assert {each["address"] for each in audit.events} == {"192.0.2.1"}
    assert {each["listener"] for each in audit.events} == {"http"}
    told = [(e["event"], e["outcome"], e.get("principal"), e.get("mechanism")) for e in audit.events]
    assert told[:2] == [
        ("login", "success", "User:alice", "PLAIN"),
        ("login", "failure", "User:alice", "PLAIN"),
    ]
    assert told[2][:2] == ("login", "failure")
    assert [each[0] for each in told[3:]] == ["refused", "refused"]
    assert "secret" not in str(audit.events)
