"""docs/rules.md and those who cite it: by name, and both ways what is named exists."""

from __future__ import annotations

import re

from simulation.planted import BUGS
from unit.docs.repository import DOCS, ROOT, has_test, headings, module_exists, texts

RULES = DOCS / "rules.md"

_NAME = r"\"[A-Z][^\"]+\""
CITATION = re.compile(rf"\b[Rr]ules? ({_NAME}(?:(?:, | and ){_NAME})*)")
NUMBERED = re.compile(
    r"\b[Rr]ules?[ -][0-9]+\b(?!\s*(?:of|,) KIP)|\bof the design\b|\bguide kafka-protocol\b"
)


def plain(text: str) -> str:
    """One line, without what begins the lines of comments: a citation may be broken anywhere."""
    return re.sub(r"\s*\n\s*(?:#|//|\*)?\s*", " ", text)


def cited() -> dict[str, set[str]]:
    """Names of rules by the files that cite them."""
    found: dict[str, set[str]] = {}
    for path, text in texts():
        if path != RULES and path.name != "test_rules.py":
            for some in CITATION.findall(plain(text)):
                found.setdefault(str(path.relative_to(ROOT)), set()).update(re.findall(r"\"([^\"]+)\"", some))
    return found


def sections() -> dict[str, str]:
    """Text of each rule."""
    parts = re.split(r"^### (.+)\n", RULES.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_no_rule_is_cited_by_number() -> None:
    numbered = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path, text in texts()
        if path.name != "test_rules.py"
        for match in NUMBERED.finditer(plain(text))
    ]
    assert not numbered, "cite a rule by its name in docs/rules.md"


def test_every_cited_rule_is_there() -> None:
    citations = cited()
    assert sum(map(len, citations.values())) > 15, "citations are found at all"
    rules = headings(RULES)
    unknown = {file: names - rules for file, names in citations.items() if names - rules}
    assert not unknown, "no such heading in docs/rules.md"


def test_a_citation_is_found_wherever_its_line_ends() -> None:
    text = '# as it must (rules "Coming\n# back" and "Flushed means flushed")'
    assert CITATION.findall(plain(text)) == ['"Coming back" and "Flushed means flushed"']
    for text in ("(rule 9)", "rule 6 of\nthe design", "Rules 1 and 2", "`rule-9-too-lax`"):
        assert NUMBERED.search(plain(text)), text


def test_every_rule_says_what_it_prevents_where_it_is_enforced_and_what_shows_it() -> None:
    rules = sections()
    assert len(rules) > 20
    for name, text in rules.items():
        for part in ("* **Prevents:**", "* **Enforced in:**", "* **Shown by:**"):
            assert text.count(part) == 1, f"{name}: {part}"


def test_what_the_rules_name_exists() -> None:
    for name, text in sections().items():
        enforced = re.findall(
            r"`(\w+(?:\.\w+)+)`", text.partition("**Enforced in:**")[2].partition("* **")[0]
        )
        shown = re.findall(r"`([\w/]+\.py(?:::\w+)?)`", text.partition("**Shown by:**")[2])
        assert enforced, f"{name}: no module"
        assert shown, f"{name}: no test"
        missing = [each for each in enforced if not module_exists(each)]
        missing += [each for each in shown if not has_test(each)]
        assert not missing, f"{name}: {missing}"


def test_planted_bugs_that_the_rules_name_exist() -> None:
    known = {bug.name for bug in BUGS}
    for name, text in sections().items():
        planted = re.findall(r"`([a-z-]+)`", text.partition("planted bug")[2])
        assert set(planted) <= known, name
