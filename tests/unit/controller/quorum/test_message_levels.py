"""Controllers of one build read what those of another one write to them."""

from __future__ import annotations

from penstock_controller.quorum import messages

KINDS_OF_LEVEL_1 = range(1, 12)
HELLO_OF_LEVEL_1 = "<BHiiB16s16s16s"


def test_a_message_between_controllers_is_one_of_the_first_level() -> None:
    """An unknown one closes the link, and a hello is of one size for ever: what is new has to be a message of its own,
    sent to peers alone that said (DescribeQuorum) that they read it."""
    assert set(messages._DECODERS) == set(KINDS_OF_LEVEL_1), (
        "give the new message a level, and ask it before sending"
    )
    assert (
        len(messages._ENCODERS) == len(messages._DECODERS) - 1
    )  # one encoder makes entries and snapshot chunks
    assert (messages._HELLO.format, messages.PROTOCOL_VERSION) == (HELLO_OF_LEVEL_1, 1)
