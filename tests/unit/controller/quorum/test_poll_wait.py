"""How long the quorum's thread may wait for the network."""

from pathlib import Path

import pytest

from penstock_controller.quorum.events import QuorumConfig
from penstock_controller.quorum.raft import poll_wait_s

CONFIG = QuorumConfig(1, (), "127.0.0.1", 0, Path(), bytes(16))


@pytest.mark.parametrize(
    ("is_settled", "is_linked", "leads", "left_s", "wait_s"),
    [
        (False, True, False, 1.0, CONFIG.tick_s),  # an election may be near
        (False, True, True, 1.0, CONFIG.tick_s),  # stopping
        (True, True, True, 0.03, 0.03),  # the next append
        (True, True, True, -0.001, CONFIG.append_period_s),  # it goes out now
        (True, True, False, 1.0, CONFIG.rest_s),  # a leader is heard
        (True, True, False, 0.02, 0.02),  # its link was lost: the election comes soon
        (True, True, False, -0.001, CONFIG.tick_s),  # votes are asked for
        (True, False, False, 1.0, 2 * CONFIG.tick_s),  # peers are to be dialled
        (True, False, True, 1.0, 2 * CONFIG.tick_s),
    ],
)
def test_wait(is_settled: bool, is_linked: bool, leads: bool, left_s: float, wait_s: float) -> None:
    assert (
        poll_wait_s(CONFIG, is_settled=is_settled, is_linked=is_linked, leads=leads, left_s=left_s) == wait_s
    )
