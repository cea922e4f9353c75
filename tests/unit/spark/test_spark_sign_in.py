"""A password that a gateway doesn't take is told at once, with its user: nobody is asked again. No network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import grpc
import pytest

from penstock_core.process import native_account
from pyspark_penstock.errors import GatewayError
from pyspark_penstock.gateway import Access, GatewayClient

WHY = "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"


class Refused(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAUTHENTICATED

    def details(self) -> str:
        return WHY


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.touch(0o600)
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="mallory" password="not-the-one";\n'
    )
    return path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Sign-ins so far, all of which are refused."""
    asked: list[str] = []

    def refuse(account: native_account.Account, authenticate: Any) -> NoReturn:
        asked.append(account.file.username or "")
        raise Refused

    monkeypatch.setattr(native_account.Account, "_sign_in", refuse)
    return asked


def test_the_planner_is_refused_once(file: Path, asked: list[str]) -> None:
    client = GatewayClient(["127.0.0.1:9", "127.0.0.1:10"], credentials_file=str(file))
    with pytest.raises(GatewayError) as caught:
        client.describe(["open"])
    assert str(caught.value) == (
        f"the gateway at 127.0.0.1:9 refused the credentials of User mallory ({WHY}); "
        f"look at credentialsFile {file}: name, password and mechanism"
    )
    assert asked == ["mallory"]


def test_so_is_a_range(file: Path, asked: list[str]) -> None:
    with pytest.raises(GatewayError, match="refused the credentials of User mallory"):
        Access(str(file)).open_range("127.0.0.1:9")
    assert asked == ["mallory"]
