"""Who lacks a right is named, as far as a client's file does, and nothing else that it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_penstock.rights import needs, user_of

NAMED = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=alice\nsasl.password=canary-9f2c\n"
BY_TOKEN = "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\nsasl.oauthbearer.token.file=token\n"


@pytest.mark.parametrize(
    ("text", "who"), [(NAMED, "User alice"), (BY_TOKEN, "the user"), ("nonsense", "the user")]
)
def test_who_lacks_a_right_is_named_as_far_as_the_file_does(tmp_path: Path, text: str, who: str) -> None:
    file = tmp_path / "client.properties"
    file.touch(0o600)
    file.write_text(text)
    assert needs(str(file), "Read") == f"{who} of credentialsFile {file} needs the right Read"
    file.unlink()
    assert user_of(str(file)) == f"the user of credentialsFile {file}"


def test_nobody_has_signed_in_without_a_file() -> None:
    assert needs("", "Describe") == "who comes without credentialsFile needs the right Describe"
