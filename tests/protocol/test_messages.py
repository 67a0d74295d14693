"""What messages may hold: whatever a peer sends, no number or list is beyond its limit."""

from typing import Any

import msgspec
import pytest

from gpupipe.protocol import messages
from helpers.lease_tables import hello

HELLO = msgspec.to_builtins(hello("0" * 32))


@pytest.mark.parametrize(
    "changes",
    [
        {"token": "0" * 31},
        {"token": "G" * 32},
        {"hwm": 0},
        {"hwm": 1001},
        {"rank": -1},
        {"rank": 2**62},
        {"name": "x" * 301},
        {"codecs": ["lz4"] * 9},
        {"held": [[0, 0]] * 1001},
        {"held": [[0, -1]]},
        {"held": [[0]]},
        {"pid": "1"},
        {"more": 1},
    ],
    ids=lambda changes: str(changes)[:30],
)
def test_an_opening_beyond_the_limits_is_refused(changes: dict[str, Any]) -> None:
    assert msgspec.convert(HELLO, messages.OpenSession) == hello("0" * 32, number=HELLO["number"])
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(HELLO | changes, messages.OpenSession)


def test_no_pass_is_a_pass_of_its_own() -> None:
    start = {"type": "start iteration", "iteration": 0, "epoch": 0, "position": 0}
    assert msgspec.convert(start | {"pass_number": -1}, messages.StartIteration).pass_number == -1
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(start | {"pass_number": -2}, messages.StartIteration)


def test_messages_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        hello("0" * 32).rank = 3  # type: ignore[misc]  # it is frozen
