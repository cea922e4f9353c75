"""Plaintext ports that other machines reach: only those that the operator names."""

from __future__ import annotations

import pytest

from penstock_runtime.addresses import StartupError, check_bind
from penstock_runtime.lifecycle import Lifecycle


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("grpc_bind", "grpc"),
        ("raft_bind", "raft"),
        ("http_bind", "http"),
        ("listener PROXY: bind", "listener:PROXY"),
    ],
)
def test_each_port_has_a_name_of_its_own(setting: str, name: str) -> None:
    every = {"grpc", "raft", "http", "listener:PROXY"}
    for allowed in (False, frozenset[str](), frozenset(every - {name})):
        check_bind("127.0.0.1:1", setting, allow_insecure_bind=allowed)
        with pytest.raises(StartupError) as caught:
            check_bind("0.0.0.0:1", setting, allow_insecure_bind=allowed)
        assert f'set allow_plaintext = ["{name}"] (allow_insecure_bind = true is all ports)' in str(
            caught.value
        )
    for allowed in (True, frozenset({name})):
        assert check_bind("0.0.0.0:1", setting, allow_insecure_bind=allowed).port == 1


async def test_a_gauge_shows_that_all_ports_may_be_plaintext() -> None:
    for allowed, shown in ((True, 1.0), (False, 0.0), (frozenset({"grpc"}), 0.0)):
        life = Lifecycle("node", allow_insecure_bind=allowed)
        assert life.registry.get_sample_value("penstock_insecure_bind") == shown
