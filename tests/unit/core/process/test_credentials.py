"""Files that say who somebody is: read whole, and not where others may read them."""

import os
from pathlib import Path

import pytest

from penstock_core.process.credentials import load_client_file, read_token
from penstock_core.security.client_file import ClientFileError

WHOLE = """
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.username=alice
sasl.password=secret
"""


def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "alice.properties"
    path.write_text(WHOLE)
    path.chmod(0o640)
    with pytest.raises(ClientFileError, match=r"mode 0640, others may read it: run `chmod 600 "):
        load_client_file(path)
    path.chmod(0o600)
    assert load_client_file(path).username == "alice"
    path.write_text("bootstrap.servers=a:1\n")
    path.chmod(0o644)
    assert load_client_file(path).bootstrap == "a:1"


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ClientFileError, match="No such file"):
        load_client_file(tmp_path / "none")
    with pytest.raises(ClientFileError, match="is no file"):
        load_client_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ClientFileError, match="is no file"):
        load_client_file(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ClientFileError, match="not UTF-8"):
        load_client_file(tmp_path / "binary")


def test_a_token_is_read_as_it_is_now(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    for text in ("aaa.bbb.ccc\n", "ddd.eee.fff"):
        path.write_text(text)
        assert read_token(path) == text.strip()
    for text in ("", "two words", "\x1b[2J"):
        path.write_text(text)
        with pytest.raises(ClientFileError, match="has no token in it"):
            read_token(path)
    path.chmod(0o644)
    with pytest.raises(ClientFileError, match="chmod 600"):
        read_token(path)


def test_files_that_are_not_in_the_working_directory_are_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "secrets"
    place.mkdir()
    path = place / "alice.properties"
    path.write_text(WHOLE + "ssl.ca.location=ca.pem\n")
    path.chmod(0o600)
    monkeypatch.chdir(tmp_path)
    assert load_client_file(path).ca_file == "ca.pem", "nowhere: as Kafka's clients have it"
    (place / "ca.pem").touch()
    assert load_client_file(path).librdkafka()["ssl.ca.location"] == str(place / "ca.pem")
    assert load_client_file(Path("secrets/alice.properties")).ca_file == str(place / "ca.pem")
    (tmp_path / "ca.pem").touch()
    assert load_client_file(path).ca_file == "ca.pem"
