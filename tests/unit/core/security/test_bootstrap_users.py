"""The file with the users that a new cluster begins with."""

import json

import pytest

from penstock_core.security.bootstrap_users import BootstrapUser, from_text, to_text
from penstock_core.security.scram import ScramMechanism, credential

USERS = tuple(
    BootstrapUser(
        "admin", credential(each, b"salt", each.salted_password(b"hush-hush", b"salt", 4096), iterations=4096)
    )
    for each in ScramMechanism
)


def test_what_is_written_is_read() -> None:
    text = to_text(USERS)
    assert from_text(text) == USERS
    assert "hush" not in text


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mechanism": "PLAIN"}, "damaged at user 1"),
        ({"iterations": 100}, "user 1: Too few iterations"),
        ({"salt": "no base64!"}, "damaged at user 1"),
        ({"salt": ""}, "damaged at user 1"),
        ({"stored_key": "YWJj"}, "damaged at user 1"),
        ({"user": ""}, "Username must not be empty"),
        ({"user": "a\x1bb"}, "damaged at user 1"),
    ],
)
def test_what_cannot_be_a_credential_is_refused(change: dict[str, object], says: str) -> None:
    told = json.loads(to_text(USERS))
    told["users"][0] |= change
    with pytest.raises(ValueError, match=says):
        from_text(json.dumps(told))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is no file of `penstock user bootstrap`"),
        ("[" * 100_000, "is no file of"),
        ('{"format": 2, "users": []}', "has format 2"),
        ('{"format": 1, "users": []}', "1 to 1000 users"),
        (to_text([USERS[0], USERS[0]]), "twice"),
    ],
)
def test_what_is_no_such_file(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        from_text(text)
