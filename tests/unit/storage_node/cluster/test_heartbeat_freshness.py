"""A node is in touch while a heartbeat that it sent a moment ago was answered."""

from __future__ import annotations

from penstock_storage_node.cluster.heartbeat_freshness import HeartbeatFreshness


def test_what_counts_is_when_the_answered_heartbeat_was_sent() -> None:
    contact = HeartbeatFreshness()
    contact.begin()
    assert not contact.is_recent(7, 500, 0), "nobody was heard of yet"
    contact.sent(1_000)
    contact.sent(1_250)
    assert not contact.is_recent(7, 500, 1_250)
    contact.answered(7, 1_400)
    assert contact.is_recent(7, 500, 1_500) and not contact.is_recent(7, 500, 1_501)
    contact.answered(7, 1_600)
    assert contact.is_recent(7, 500, 1_750) and not contact.is_recent(7, 500, 1_751)
    assert contact.heard_ms == 1_600


def test_an_answer_that_waited_while_the_process_was_stopped_says_nothing_of_now() -> None:
    contact = HeartbeatFreshness()
    contact.begin()
    contact.sent(1_000)
    contact.answered(7, 60_000)
    assert not contact.is_recent(7, 500, 60_000)


def test_a_new_stream_answers_its_own_heartbeats() -> None:
    contact = HeartbeatFreshness()
    contact.begin()
    for sent_ms in (1_000, 1_250, 1_500):
        contact.sent(sent_ms)  # their controller is gone
    contact.begin()
    contact.sent(9_000)
    contact.answered(7, 9_010)
    assert contact.is_recent(7, 100, 9_100)


def test_who_has_older_metadata_than_the_answer_may_be_deposed() -> None:
    contact = HeartbeatFreshness()
    contact.begin()
    contact.sent(1_000)
    contact.answered(8, 1_001)
    assert not contact.is_recent(7, 500, 1_002)
    assert contact.is_recent(8, 500, 1_002) and contact.is_recent(9, 500, 1_002)
