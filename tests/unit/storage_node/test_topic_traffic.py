"""Rows by topic: the first ones have their own, the others share one, and names that are gone make room."""

from __future__ import annotations

from penstock_storage_node.topic_traffic import OTHER, TopicTraffics


def rows(traffics: TopicTraffics, name: str) -> dict[str, float]:
    (family,) = [f for f in traffics.families() if f.name == f"penstock_topic_{name}"]
    return {sample.labels["topic"]: sample.value for sample in family.samples}


def test_the_first_topics_have_rows_and_all_others_share_one() -> None:
    traffics = TopicTraffics(topics_max=2)
    for number in range(5):
        traffics.of(f"t{number}").received_bytes += 10
    assert rows(traffics, "received_bytes") == {"t0": 10, "t1": 10, OTHER: 30}
    assert traffics.of("t0") is traffics.of("t0")
    assert traffics.of("t3") is traffics.of("t4")


def test_topics_that_are_no_more_make_room() -> None:
    traffics = TopicTraffics(topics_max=2)
    there = {"t0", "t1", "t2"}
    traffics.is_known = there.__contains__
    for name in ("t0", "t1"):
        traffics.of(name).sent_bytes += 1
    there.remove("t0")
    traffics.of("t2").sent_bytes += 5
    assert rows(traffics, "sent_bytes") == {"t1": 1, "t2": 5, OTHER: 0}


def test_no_rows_at_all_where_none_are_wanted() -> None:
    traffics = TopicTraffics(topics_max=0)
    traffics.of("t").received_records += 3
    assert rows(traffics, "received_records") == {OTHER: 3}
