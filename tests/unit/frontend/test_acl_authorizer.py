"""The authorizer follows the ACLs of the metadata, by deltas and by snapshots."""

from __future__ import annotations

import random
from typing import Any

import pytest

from penstock_core.metadata.image import MetadataImage
from penstock_core.metadata.security import AclRow
from penstock_core.security.acl import AclOperation, ResourceType
from penstock_core.security.acl_set import AclSet
from penstock_core.security.principal import Identity, client_identity, user
from penstock_frontend.acl_authorizer import AclAuthorizer, binding_of
from penstock_frontend.settings import KafkaServerSettings
from penstock_proto.v1 import metadata_pb2 as pb
from support.acls import acl

ALICE = Identity(user("alice"), "10.0.0.1")
READ = (AclOperation.READ, ResourceType.TOPIC)


def added(*entries: pb.AclRecord) -> list[pb.MetadataRecord]:
    return [pb.MetadataRecord(acl=entry) for entry in entries]


def removed(*entries: pb.AclRecord) -> list[pb.MetadataRecord]:
    return [pb.MetadataRecord(acl_removed=pb.AclRemovedRecord(acl=entry)) for entry in entries]


def entry(number: int, **more: Any) -> pb.AclRecord:
    return acl(*READ, f"t-{number}", principal="User:alice", **more)


class Follower:
    """An authorizer behind an image."""

    def __init__(self, **more: Any) -> None:
        self.image = MetadataImage()
        self.authorizer = AclAuthorizer(**more)

    def apply(self, records: list[pb.MetadataRecord]) -> None:
        old, self.image = self.image, self.image.apply(records, self.image.version + 1)
        self.authorizer.metadata_changed(old, self.image, records)

    def load(self, image: MetadataImage) -> None:
        """A snapshot in place of what was there."""
        old, self.image = self.image, image
        self.authorizer.metadata_changed(old, image, list(image.to_records()))

    def may(self, name: str, who: Identity = ALICE) -> bool:
        return self.authorizer.authorize(who, *READ, name)


@pytest.mark.parametrize("written", ["2001:db8::a:1", "2001:db8:0:0:0:0:a:1"])
def test_an_entry_for_an_address_of_ipv6_counts_as_we_write_it_and_as_kafka_does(written: str) -> None:
    there = client_identity(user("alice"), "2001:db8::a:1")
    elsewhere = client_identity(user("alice"), "2001:db8::a:2")
    one = Follower()
    one.apply(added(entry(1), entry(2, host=written)))
    assert one.may("t-2", there)
    assert not one.may("t-2", elsewhere)
    denial = acl(*READ, "t-1", principal="User:alice", host=written, deny=True)
    one.apply(added(denial))
    assert not one.may("t-1", there)
    assert one.may("t-1", elsewhere)
    one.apply(removed(denial))
    assert one.may("t-1", there)


def test_before_the_first_metadata_only_super_users_may() -> None:
    one = Follower(super_users=[user("root")], allow_everyone=True)
    assert not one.may("t")
    assert one.may("t", Identity(user("root"), "x"))
    one.apply([])
    assert one.may("t"), "no ACL is about it"
    one.apply(added(entry(1, host="elsewhere")))
    assert one.may("t") and not one.may("t-1")


def test_a_change_is_heard_at_once_and_another_part_changes_nothing() -> None:
    one = Follower()
    one.apply(added(entry(1)))
    assert one.may("t-1")
    version = one.authorizer.version
    one.apply([pb.MetadataRecord(topic=pb.TopicRecord(topic_id=bytes(16), name="t-1"))])
    assert one.authorizer.version is version
    one.apply(removed(entry(1)))
    assert one.authorizer.version is not version
    assert not one.may("t-1")


def test_denials_are_told_and_listings_are_not() -> None:
    told: list[Any] = []
    one = Follower(on_denied=lambda *what: told.append(what))
    one.apply(added(entry(1)))
    assert one.authorizer.permitted(ALICE, *READ, ["t-2", "t-1"]) == ["t-1"]
    assert not one.authorizer.allows(ALICE, *READ, "t-2")
    assert told == []
    assert not one.may("t-2")
    assert told == [(ALICE, *READ, "t-2")]


def test_whatever_happens_it_has_the_acls_of_the_image() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    one = Follower()
    for _ in range(300):
        there = list(one.image.security.acls)
        if rng.random() < 0.1:
            numbers = rng.sample(range(30), rng.randrange(30))
            records = added(*(entry(n) for n in numbers))
            one.load(MetadataImage.from_records(records, one.image.version + rng.randrange(1, 5)))
        else:
            gone = [row.to_pb() for row in rng.sample(there, rng.randrange(min(len(there), 5) + 1))]
            records = removed(*gone) + added(*(entry(rng.randrange(30)) for _ in range(rng.randrange(4))))
            one.apply(records)
        wanted = AclSet(filter(None, map(binding_of, one.image.security.acls)))
        assert one.authorizer._decider.acls == wanted
        assert len(one.authorizer._decider.acls) == len(one.image.security.acls)


@pytest.mark.parametrize(
    "change", [{"permission": 9}, {"pattern_type": 9}, {"principal": "alice"}, {"permission": 1}]
)
def test_an_acl_of_a_newer_build_counts_for_nothing_and_hides_no_other(change: dict[str, Any]) -> None:
    strange = AclRow.from_pb(entry(1))._replace(**change).to_pb()
    one = Follower()
    one.apply(added(strange, entry(2)))
    assert (one.may("t-1"), one.may("t-2")) == (False, True)
    one.apply(added(entry(3)) + removed(strange))
    assert one.may("t-3") and one.may("t-2")


def test_an_ipv4_client_of_a_socket_for_both_families_is_the_same_client() -> None:
    assert client_identity(user("alice"), "::ffff:10.0.0.1") == ALICE
    assert client_identity(user("alice"), "::ffff:0:1").host == "::ffff:0:1"
    assert str(ALICE) == "User:alice from 10.0.0.1"


def test_settings_choose_it() -> None:
    fields = KafkaServerSettings.model_fields
    assert fields["authorizer"].default == "none"
    assert fields["super_users"].default_factory is not None
    assert fields["allow_everyone_if_no_acl_found"].default is False


def test_rights_that_are_too_old_are_nobodys_until_there_is_news() -> None:
    root = Identity(user("root"), "x")
    one = Follower(super_users=[user("root")])
    one.apply(added(entry(1)))
    assert one.may("t-1")
    assert one.may("t-1", root)
    one.authorizer.distrust()
    one.authorizer.distrust()
    assert not one.may("t-1")
    assert not one.may("t-1", root)
    one.apply([*removed(entry(1)), *added(entry(2))])
    assert not one.may("t-2")
    one.authorizer.trust()
    assert [one.may("t-1"), one.may("t-2"), one.may("t-1", root)] == [False, True, True]
    one.authorizer.trust()
    assert one.may("t-2")
