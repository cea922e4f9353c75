"""Keys of tokens: every cluster of level 2 has one, and two after a while."""

from __future__ import annotations

from penstock_controller.state import session_keys
from penstock_core.security.session_token import SessionClaims, SessionKeys
from unit.controller.state.test_nodes import Cluster


def keys_of(cluster: Cluster) -> list[str]:
    return sorted(name for name in cluster.image.security.secrets if name.startswith("session-token:"))


def test_a_token_outlives_one_change_of_keys_and_not_two() -> None:
    cluster = Cluster(level=2)
    assert keys_of(cluster) == ["session-token:1"]
    token = SessionKeys(cluster.image.security.secrets).issue(SessionClaims("alice", 1, 1, 10))
    for number, known in ((2, True), (3, False)):
        made = session_keys.rotate(cluster.context, number - 1)
        cluster.do(made)
        assert made.reply
        assert keys_of(cluster) == [f"session-token:{n}" for n in (number - 1, number)]
        try:
            assert SessionKeys(cluster.image.security.secrets).read(token, 0).user == "alice"
            assert known
        except Exception as error:
            assert "key is not known" in str(error)
            assert not known


def test_two_wishes_for_one_key_make_one() -> None:
    cluster = Cluster(level=2)
    cluster.do(session_keys.rotate(cluster.context, 1))
    assert session_keys.rotate(cluster.context, 1).records == []
    assert not session_keys.lacks_key(cluster.image)


def test_below_level_two_there_is_none() -> None:
    cluster = Cluster(level=1)
    assert session_keys.rotate(cluster.context, 0).records == []
    assert not session_keys.lacks_key(cluster.image)
