"""Whether a principal may: held against a slow reference, and the rules one by one."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core.security import acl_decision
from penstock_core.security.acl import (
    OPERATIONS_OF,
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
    bit,
)
from penstock_core.security.acl_decision import AclDecider, Reason
from penstock_core.security.acl_set import AclSet
from penstock_core.security.principal import EVERYBODY, Principal, user
from support import acl_reference as slow

HOST = "10.0.0.1"
ALICE = user("alice")


def entry(
    operation: AclOperation,
    name: str = "t",
    *,
    permission: Permission = Permission.ALLOW,
    prefixed: bool = False,
    principal: Principal = ALICE,
    host: str = "*",
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    pattern = PatternType.PREFIXED if prefixed else PatternType.LITERAL
    return AclBinding(kind, pattern, name, principal, host, operation, permission)


def may(
    entries: list[AclBinding],
    operation: AclOperation,
    name: str = "t",
    principal: Principal = ALICE,
    host: str = HOST,
) -> bool:
    return AclDecider(AclSet(entries)).authorize(principal, host, operation, ResourceType.TOPIC, name)


ALLOW_READ = entry(AclOperation.READ)
DENY_READ = entry(AclOperation.READ, permission=Permission.DENY)


def test_nobody_may_anything_without_an_entry() -> None:
    assert not may([], AclOperation.READ)
    assert not may([ALLOW_READ], AclOperation.WRITE)
    assert may([ALLOW_READ], AclOperation.READ)
    assert not may([ALLOW_READ], AclOperation.READ, principal=user("bob"))
    assert not may([ALLOW_READ], AclOperation.READ, principal=Principal("Group", "alice"))


def test_deny_wins_over_every_allow() -> None:
    everything = entry(AclOperation.ALL, "*", principal=EVERYBODY)
    assert may([everything], AclOperation.READ)
    assert not may([everything, ALLOW_READ, DENY_READ], AclOperation.READ)
    prefix = entry(AclOperation.ALL, "t", prefixed=True, principal=EVERYBODY, permission=Permission.DENY)
    assert not may([everything, prefix], AclOperation.READ, "topic")
    assert may([everything, prefix], AclOperation.READ, "other")


@pytest.mark.parametrize(
    "stronger", [AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER]
)
def test_describe_is_implied_when_allowed_and_not_when_denied(stronger: AclOperation) -> None:
    assert may([entry(stronger)], AclOperation.DESCRIBE)
    deny = entry(stronger, permission=Permission.DENY)
    assert may([deny, entry(AclOperation.DESCRIBE)], AclOperation.DESCRIBE)
    assert not may([entry(stronger)], AclOperation.DESCRIBE_CONFIGS)


def test_alter_configs_implies_describe_configs() -> None:
    assert may([entry(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE_CONFIGS)
    assert not may([entry(AclOperation.ALTER_CONFIGS)], AclOperation.DESCRIBE)


def test_a_prefix_and_a_host() -> None:
    assert may([entry(AclOperation.READ, "te", prefixed=True)], AclOperation.READ, "team")
    assert not may([entry(AclOperation.READ, "te")], AclOperation.READ, "team")
    assert not may([entry(AclOperation.READ, "te", prefixed=True)], AclOperation.READ, "t")
    assert may([entry(AclOperation.READ, host=HOST)], AclOperation.READ)
    assert not may([entry(AclOperation.READ, host="10.0.0.2")], AclOperation.READ)


def test_a_wildcard_is_about_names_that_begin_with_a_star_too() -> None:
    """StandardAuthorizerData 4.3.1 passes over it there, DENY and all: group ids may be such names."""
    deny = entry(AclOperation.ALL, "*", permission=Permission.DENY)
    assert may([entry(AclOperation.READ, "*")], AclOperation.READ, "*x")
    assert not may([deny, entry(AclOperation.READ, "*x")], AclOperation.READ, "*x")


def test_super_users_may_everything_whatever_is_denied() -> None:
    decider = AclDecider(AclSet([DENY_READ]), [ALICE])
    question = (ALICE, HOST, AclOperation.READ, ResourceType.TOPIC, "t")
    assert decider.authorize(*question)
    assert decider.explain(*question).reason is Reason.SUPER_USER
    assert decider.authorize_by_resource_type(ALICE, HOST, AclOperation.WRITE, ResourceType.TOPIC)
    assert decider.permitted(ALICE, HOST, AclOperation.READ, ResourceType.TOPIC, ["t", "u"]) == ["t", "u"]


def test_everyone_is_allowed_only_where_no_entry_is_about_the_resource() -> None:
    bobs = entry(AclOperation.READ, "b", prefixed=True, principal=user("bob"), host="10.9.9.9")
    decider = AclDecider(AclSet([bobs]), allow_everyone=True)
    assert decider.authorize(ALICE, HOST, AclOperation.WRITE, ResourceType.TOPIC, "t")
    assert decider.authorize(ALICE, HOST, AclOperation.WRITE, ResourceType.GROUP, "b")
    assert not decider.authorize(ALICE, HOST, AclOperation.WRITE, ResourceType.TOPIC, "b1")
    assert not AclDecider(AclSet([bobs])).authorize(ALICE, HOST, AclOperation.WRITE, ResourceType.TOPIC, "t")


def test_authorized_operations_are_bits() -> None:
    decider = AclDecider(AclSet([entry(AclOperation.ALL), DENY_READ]), [user("root")])
    bits = decider.authorized_operations(ALICE, HOST, ResourceType.TOPIC, "t")
    assert bits == OPERATIONS_OF[ResourceType.TOPIC] & ~bit(AclOperation.READ)
    everything = decider.authorized_operations(user("root"), HOST, ResourceType.GROUP, "g")
    assert everything == OPERATIONS_OF[ResourceType.GROUP]


def test_an_explanation_names_the_most_specific_entry() -> None:
    wide = entry(AclOperation.ALL, "*", principal=EVERYBODY)
    prefix = entry(AclOperation.READ, "t", prefixed=True)
    decider = AclDecider(AclSet([wide, prefix, ALLOW_READ]))
    decided = decider.explain(ALICE, HOST, AclOperation.DESCRIBE, ResourceType.TOPIC, "t")
    assert (decided.allowed, decided.entry) == (True, ALLOW_READ)
    assert str(decided) == "allowed: ALLOW User:alice from * READ on TOPIC:LITERAL:t"
    nothing = AclDecider(AclSet()).explain(ALICE, HOST, AclOperation.READ, ResourceType.TOPIC, "t")
    assert str(nothing) == "denied: no entry applies"


CASES = 12_000


def test_both_implementations_agree() -> None:
    """Sets that change, both defaults, all kinds of questions."""
    seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    asked = 0
    answers = {False: 0, True: 0}
    while asked < CASES:
        entries: set[AclBinding] = set()
        acls = AclSet()
        supers = rng.sample(slow.PRINCIPALS, rng.choice((0, 0, 1)))
        for _ in range(rng.randrange(1, 5)):
            added = {slow.some_entry(rng) for _ in range(rng.randrange(20))}
            removed = {one for one in sorted(entries) if rng.random() < 0.3}
            entries = entries - removed | added
            acls = acls.changed(added, removed)
            assert (len(acls), set(acls)) == (len(entries), entries)
            for everyone in (False, True):
                decider = AclDecider(acls, supers, everyone)
                there = sorted(entries)
                for _ in range(12):
                    question = slow.some_question(rng, there)
                    expected = slow.authorize(entries, supers, everyone, question)
                    assert decider.authorize(*question) == expected, question
                    assert decider.authorize(*question) == expected, "the answer that was kept"
                    assert decider.explain(*question).allowed == expected, question
                    principal, host, operation, kind, name = question
                    assert decider.permitted(principal, host, operation, kind, [name]) == [name] * expected
                    by_type = slow.authorize_by_resource_type(
                        entries, supers, everyone, principal, host, operation, kind
                    )
                    found = decider.authorize_by_resource_type(principal, host, operation, kind)
                    assert found == by_type, question
                    asked += 1
                    answers[expected] += 1
    assert min(answers.values()) > CASES / 10, answers


@settings(max_examples=150)
@given(st.randoms(use_true_random=False), st.lists(st.integers(0, 11), max_size=8), st.booleans())
def test_both_agree_on_what_hypothesis_finds(rng: random.Random, sizes: list[int], everyone: bool) -> None:
    entries = {slow.some_entry(rng) for _ in range(sum(sizes))}
    decider = AclDecider(AclSet(entries), allow_everyone=everyone)
    there = sorted(entries)
    for _ in range(30):
        question = slow.some_question(rng, there)
        assert decider.authorize(*question) == slow.authorize(entries, (), everyone, question), question


def test_sets_share_and_do_not_touch_one_another() -> None:
    rng = random.Random(5)
    before = AclSet(slow.some_entry(rng) for _ in range(300))
    said = set(before)
    one = next(iter(before))
    after = before.with_removed(one).with_added(ALLOW_READ)
    assert set(before) == said
    assert set(after) == said - {one} | {ALLOW_READ}
    assert after.with_added(one).with_removed(ALLOW_READ) == before
    assert after != before
    assert before.with_added(one) == before
    assert before.with_removed(ALLOW_READ) == before
    assert len(before.with_removed(*said)) == 0


def test_filters_find_what_they_ask_for() -> None:
    acls = AclSet([ALLOW_READ, DENY_READ, entry(AclOperation.READ, "te", prefixed=True)])
    wanted = AclFilter(ResourceType.TOPIC, PatternType.MATCH, "team")
    assert [found.name for found in acls.matching(wanted)] == ["te"]
    assert len(list(acls.matching(AclFilter()))) == 3


def test_what_is_kept_is_bounded_and_stays_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_decision, "ANSWERS_MAX", 50)
    monkeypatch.setattr(acl_decision, "ANSWERS_OF_ONE_MAX", 20)
    monkeypatch.setattr(acl_decision, "ASKERS_MAX", 7)
    decider = AclDecider(AclSet([entry(AclOperation.READ, "t1", prefixed=True, principal=EVERYBODY)]))
    rng = random.Random(9)
    for _ in range(5_000):
        name = f"t{rng.randrange(400)}" * rng.choice((1, 1, 100))
        who = user(str(rng.randrange(12)))
        expected = name.startswith("t1")
        assert decider.authorize(who, HOST, AclOperation.READ, ResourceType.TOPIC, name) == expected
        kept = sum(len(answers) for asker in decider._askers.values() for answers in asker.answers)
        assert kept == decider.kept <= 50
        assert len(decider._askers) <= 7
