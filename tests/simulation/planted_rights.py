"""Planted bugs, fourth part: users, rights and shares of quotas.

For `planted`, which says what such a bug is and has the list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import penstock_storage_node.rpc.forward as forward_module
from penstock_core.security.principal import NOBODY
from penstock_core.security.quota_dealer import QuotaDealer
from penstock_frontend.acl_authorizer import AclAuthorizer
from penstock_frontend.authorizer import AllowAll
from penstock_frontend.sign_in.credentials import SignedIn
from penstock_storage_node.kafka.rights import Rights
from simulation.settings import Settings

Patch = tuple[Any, str, Any]
Row = tuple[str, str, Callable[[], list[Patch]], Callable[[Settings], None]]


def _with_rights(settings: Settings) -> None:
    settings.with_rights = True


def _cut_off(settings: Settings) -> None:
    settings.with_rights = True
    settings.favoured = ("two hosts apart", "host cut off, one way")
    settings.fault_interval_us = 600_000


def _node_asks_nobody() -> list[Patch]:
    init = Rights.__init__
    return [(Rights, "__init__", lambda rights, _authorizer: init(rights, AllowAll()))]


def _relayed_by_nobody() -> list[Patch]:
    # Nobody in particular is a super user here.
    return [(forward_module, "identity_of", lambda _opened: NOBODY)]


def _deleted_user_stays() -> list[Patch]:
    return [(SignedIn, "on_metadata", lambda *_: None)]


def _password_not_compared() -> list[Patch]:
    close = SignedIn.on_metadata

    def only_deleted(signed_in: Any, old: Any, new: Any) -> None:
        # "The user is still there."
        gone = old.security.credentials.keys() - new.security.credentials.keys()
        if gone:
            close(signed_in, old, new)

    return [(SignedIn, "on_metadata", only_deleted)]


def _removed_rules_stay() -> list[Patch]:
    follow = AclAuthorizer.metadata_changed

    def only_more(authorizer: Any, old: Any, new: Any, records: Any) -> None:
        before = authorizer._rows or {}
        if not before.keys() - new.security.acls.keys():
            follow(authorizer, old, new, records)

    return [(AclAuthorizer, "metadata_changed", only_more)]


def _rules_read_once() -> list[Patch]:
    follow = AclAuthorizer.metadata_changed

    def once(authorizer: Any, old: Any, new: Any, records: Any) -> None:
        if not authorizer._rows:
            follow(authorizer, old, new, records)

    return [(AclAuthorizer, "metadata_changed", once)]


def _whole_quota_to_each() -> list[Patch]:
    def all_of_it(_dealer: Any, pool: Any, now_ms: int) -> None:
        pool.dealt_ms = now_ms
        pool.dealt = dict.fromkeys(pool.demands, 1.0)

    return [(QuotaDealer, "_deal", all_of_it)]


ROWS: list[Row] = [
    ("node-asks-nobody", "a storage node serves whatever comes", _node_asks_nobody, _with_rights),
    (
        "relayed-by-nobody",
        "a node decides about what gateways relay as if they were the client",
        _relayed_by_nobody,
        _cut_off,
    ),
    ("deleted-user-stays", "connections of a user that was deleted go on", _deleted_user_stays, _with_rights),
    (
        "password-not-compared",
        "connections go on while their user is there, whatever its password",
        _password_not_compared,
        _with_rights,
    ),
    ("removed-rules-stay", "rules that were removed count on", _removed_rules_stay, _with_rights),
    ("rules-read-once", "rights are compiled once and never again", _rules_read_once, _with_rights),
    ("whole-quota-to-each", "each process gets the whole of a quota", _whole_quota_to_each, _with_rights),
]
