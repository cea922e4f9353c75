"""Lines of the audit log: harmless, and summed up when there are too many."""

import json

from penstock_core.security.audit import LINES_PER_S, SUMS_MAX, TEXT_LENGTH_MAX, Sums, line, sums_of


def denied(**more: object) -> dict[str, object]:
    return {"event": "denied", "outcome": "denied", "principal": "User:a", "api": "Produce", **more}


def test_a_line_has_time_and_process_and_leaves_out_what_is_not_known() -> None:
    said = line(denied(client_id=None, rule="", again=True), "gateway/g1", 1_800_000_000_123)
    assert said == (
        '{"time":"2027-01-15T08:00:00.123Z","process":"gateway/g1","event":"denied","outcome":"denied",'
        '"principal":"User:a","api":"Produce","again":true}'
    )


def test_what_others_say_does_nothing_in_it_and_is_not_long() -> None:
    evil = 'a"\n{"event":"login"}\x1b[2J\u202e\ud800'
    said = line(denied(client_id=evil, resource="x" * 5_000), "p", 0)
    assert "\n" not in said
    assert said.isprintable()
    read = json.loads(said)
    assert read["client_id"] == 'a"\\x0a{"event":"login"}\\x1b[2J\\u202e\\ud800'
    assert len(read["resource"]) == TEXT_LENGTH_MAX + 3


def test_up_to_so_many_a_second_have_lines_and_the_rest_is_counted() -> None:
    sums = Sums()
    assert all(sums.admit(denied(), 5_000) for _ in range(LINES_PER_S))
    for i in range(7):
        assert not sums.admit(denied(resource=f"t{i}", client_id=f"c{i}"), 5_500)
    assert not sums.admit(denied(principal="User:b"), 5_999)
    assert sums.pending
    assert sums.due(5_999) == []
    assert sums.due(6_000) == [
        {"event": "denied", "outcome": "denied", "principal": "User:a", "api": "Produce", "count": 7},
        {"event": "denied", "outcome": "denied", "principal": "User:b", "api": "Produce", "count": 1},
    ]
    assert sums.due(9_000) == []
    assert sums.admit(denied(), 6_001)


def test_a_new_second_begins_without_counts() -> None:
    sums = Sums(1)
    assert [sums.admit(denied(), ms) for ms in (5_000, 6_000, 6_500)] == [True, True, False]
    assert [each["count"] for each in sums.due(6_600, at_once=True)] == [1]


def test_counts_are_bounded_and_complete() -> None:
    sums = Sums(0)
    for i in range(SUMS_MAX + 50):
        sums.admit(denied(principal=f"User:{i}"), 0)
    told = sums.due(1_000)
    assert len(told) == SUMS_MAX + 1
    assert sum(int(str(each["count"])) for each in told) == SUMS_MAX + 50
    assert told[-1] == {"event": "denied", "outcome": "denied", "count": 50}


def test_who_accessed_what_is_counted_by_name() -> None:
    sums = sums_of("access")
    for name in ("a", "b", "a"):
        assert not sums.admit({"event": "access", "resource": name, "client_id": "c"}, 0)
    assert sums.due(1_000) == [
        {"event": "access", "resource": "a", "count": 2},
        {"event": "access", "resource": "b", "count": 1},
    ]
