"""A raw connection whose client signs in; users and ACLs made for scenarios, and waited for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Any
from uuid import uuid4

from conformance import build
from conformance.secure_world import PASSWORD, Doors
from conformance.wire import Wire
from penstock_core.security.scram import ScramMechanism
from penstock_core.security.scram_client import ScramClient
from support.waiting import wait_for

SALT = b"salt of the tests"
ITERATIONS = 4096
IN_EFFECT_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 20.0
"""What comes later than that never comes."""


def plain_token(user: str, password: str, authzid: str = "") -> bytes:
    """PLAIN's one message."""
    return "\0".join((authzid, user, password)).encode()


def handshake(wire: Wire, mechanism: str, version: int = 1) -> Any:
    """The answer to SaslHandshake."""
    return wire.call(build.request("sasl_handshake", version, {"mechanism": mechanism}))


def token(wire: Wire, data: bytes, version: int = 2) -> Any:
    """The answer to SaslAuthenticate."""
    return wire.call(build.request("sasl_authenticate", version, {"auth_bytes": data}))


def scram(
    wire: Wire, user: str, password: str = PASSWORD, mechanism: ScramMechanism = ScramMechanism.SHA_256
) -> Any:
    """Handshake and both messages; the last answer, which was looked at if it is none of a failure."""
    handshake(wire, mechanism.mechanism_name)
    client = ScramClient(mechanism, user, password, uuid4().hex)
    first = token(wire, client.first())
    if int(first.error_code):
        return first
    last = token(wire, client.final(bytes(first.auth_bytes)))
    if not int(last.error_code):
        client.finish(bytes(last.auth_bytes))
    return last


def signed_in(address: str, user: str) -> Wire:
    """A connection of that user."""
    wire = Wire(address, ANSWER_TIMEOUT_S)
    answer = scram(wire, user)
    assert not int(answer.error_code), f"{user} does not get in: {answer.error_message}"
    return wire


@cache
def _salted(mechanism: ScramMechanism) -> bytes:
    return mechanism.salted_password(PASSWORD.encode(), SALT, ITERATIONS)


def set_users(
    address: str, users: Iterable[str], mechanisms: Sequence[ScramMechanism] = (ScramMechanism.SHA_256,)
) -> None:
    """Credentials; they count once ACLs that are made later do (`set_acls`)."""
    names = list(users)
    with Wire(address) as wire:
        for mechanism in mechanisms:  # Kafka lets nobody be named twice in a request
            upsertions = [
                {
                    "name": user,
                    "mechanism": int(mechanism),
                    "iterations": ITERATIONS,
                    "salt": SALT,
                    "salted_password": _salted(mechanism),
                }
                for user in names
            ]
            request = build.request("alter_user_scram_credentials", 0, {"upsertions": upsertions})
            wrong = [result for result in wire.call(request).results if int(result.error_code)]
            assert not wrong, wrong[0]


def user_known(address: str, user: str) -> bool:
    """Whether a user has a credential."""
    request = build.request("describe_user_scram_credentials", 0, {"users": [{"name": user}]})
    with Wire(address) as wire:
        return not any(int(one.error_code) for one in wire.call(request).results)


def set_acls(doors: Doors, entries: Sequence[dict[str, Any]], mark: str) -> list[str]:
    """Make ACLs and wait until every process decides by them: the code of each.

    `mark` is a name that nobody else uses: an entry about it is the last one, and is waited for.
    """
    last = {
        "resource_type": 2,
        "resource_pattern_type": 3,
        "resource_name": mark,
        "principal": f"User:{mark}",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    codes: list[str] = []
    with Wire(doors.plain) as wire:
        for creations in (list(entries), [last]):
            if creations:
                answer = wire.call(build.request("create_acls", 3, {"creations": creations}))
                codes += [result.error_code.name.upper() for result in answer.results]
    assert codes.pop() == "NONE"
    for witness in doors.witnesses:
        known = partial(_acl_known, witness, mark)
        wait_for(known, f"the ACLs of {mark} at {witness}", IN_EFFECT_TIMEOUT_S)
    return codes


def _acl_known(address: str, name: str) -> bool:
    values = {
        "resource_type_filter": 2,
        "resource_name_filter": name,
        "pattern_type_filter": 3,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    with Wire(address) as wire:
        return bool(wire.call(build.request("describe_acls", 3, values)).resources)
