"""Rules for certificate subjects: Kafka's own examples, and what is refused when it is read."""

import pytest

from penstock_core.security.principal_mapping import BadRule, NoRuleMatches, PrincipalMapping

# SslPrincipalMapperTest of Kafka.
RULES = (
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L,"
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U,"
    "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U,"
    "DEFAULT"
)


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("CN=Jens.Smith,O=x", "JENS.SMITH"),
        ("OU=JavaSoft,O=Sun", "OU=JavaSoft,O=Sun"),
    ],
)
def test_kafkas_examples(subject: str, name: str) -> None:
    assert PrincipalMapping(RULES).name(subject) == name


def test_the_first_rule_that_matches_counts() -> None:
    mapping = PrincipalMapping("RULE:^CN=(a.*)$/first-$1/, RULE:^CN=(.*)$/second-$1/")
    assert mapping.name("CN=ab") == "first-ab"
    assert mapping.name("CN=b") == "second-b"


def test_without_rules_the_subject_is_the_name() -> None:
    assert PrincipalMapping().name("CN=a,O=b") == "CN=a,O=b"


@pytest.mark.parametrize(
    ("rule", "subject", "name"),
    [
        (r"RULE:^CN=(.*?)/(.*)$/$1/", "", None),  # the second slash ends the pattern
        (r"RULE:^CN=(.*?)\/(.*)$/$1\/$2/", "CN=a/b", "a/b"),
        (r"RULE:^(a)(b)$/$2$1$3/", "ab", "ba$3"),
        (r"RULE:^(a)(b)$/$12/", "ab", "a2"),
        (r"RULE:^(a)$/\$1$0/", "a", "$1a"),
        (r"RULE:^CN=(.*)$/$1, Ltd./", "CN=a", "a, Ltd."),
        (r"RULE:^CN=(Ä.*)$/$1/L", "CN=ÄB", "äb"),
        (r"RULE:^(CN=(x))?y$/<$2>/", "y", "<>"),
        # Java's replaceAll: once more at the end, where .* matches nothing
        (r"RULE:.*/nobody/", "CN=a", "nobodynobody"),
        (r"RULE:CN=(.*?)/$1-x/", "CN=abc", "-xabc"),
    ],
)
def test_replacements_are_javas(rule: str, subject: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(BadRule):
            PrincipalMapping(rule)
    else:
        assert PrincipalMapping(rule).name(subject) == name


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("", "write DEFAULT"),
        (" , ", "write DEFAULT"),
        ("default", "neither DEFAULT"),
        ("DEFAULT/L", "then '/L'"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1", "neither DEFAULT"),
        ("RULE:^CN=(.*?)$/$1/LU", "then 'U'"),
        ("RULE:^CN=(.*?)$/$1/l", "then 'l'"),
        ("DEFAULT, OTHER", "'OTHER' is neither"),
        ("RULE:^CN=((.*?)$/$1/", "missing"),
        ("RULE:^CN=(?=a)$/x/", "invalid"),
        ("RULE:" + "a" * 2_000 + "/x/", "1024"),
        ("RULE:(a{1000}){1000}/x/", "repetition"),
        ("RULE:(" + r"\pL{90}" * 40 + ")/x/", "too large"),
        ("RULE:^a$/$x/", "number of a group"),
        ("RULE:^a$/${x}/", "number of a group"),
        ("RULE:^a$/$1/", "none in parentheses"),
    ],
)
def test_a_bad_rule_is_named_when_it_is_read(rules: str, why: str) -> None:
    with pytest.raises(BadRule) as caught:
        PrincipalMapping(rules)
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_subject_that_no_rule_matches_is_refused() -> None:
    mapping = PrincipalMapping("RULE:^CN=(.*?),OU=x$/$1/")
    for subject in ("CN=a,OU=y", "CN=,OU=x", "", "CN=" + "a" * 10_000):
        with pytest.raises(NoRuleMatches):
            mapping.name(subject)


def test_no_pattern_takes_long() -> None:
    """Python's own matcher would not come back from this."""
    with pytest.raises(NoRuleMatches):
        PrincipalMapping("RULE:^(a+)+$/$1/").name("a" * 5_000 + "!")
