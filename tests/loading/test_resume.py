"""States, and what they belong to."""

from __future__ import annotations

from typing import Any

import pytest

from gpupipe.errors import StateError
from gpupipe.loading.resume import check_state

OWN = {"version": 2, "data": "d1", "pipeline": "p1", "epoch": 0, "position": 0, "seed": 5}
ENTRY = {"step": 0, "epoch": 0, "position": 0, "world_size": 1, "batch_size": 4}
STATE = OWN | {"step": 3, "skipped": [1, 2], "history": [ENTRY], "content": {}, "functions": {}}


def test_states_of_both_versions_are_taken() -> None:
    assert check_state(STATE, OWN, True) is STATE
    assert check_state(OWN | {"version": 1}, OWN, True)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "and not None"),
        ([1], "and not a list"),
        ({}, "that is empty: it lacks 'version'"),
        ({"weights": 1}, "that has 'weights': it lacks 'version'"),
        (STATE | {"seed": "5"}, "whose 'seed' is '5'"),
        (STATE | {"version": True}, "whose 'version' is True"),
        (STATE | {"version": 3}, "another version of gpupipe: 3, not 2"),
        (STATE | {"step": -1}, "whose 'step' is -1"),
        (STATE | {"skipped": [0, 1.5]}, "whose 'skipped' is"),
        (STATE | {"history": [{"step": 0}]}, "whose 'history' is"),
        (STATE | {"content": []}, "whose 'content' is"),
    ],
    ids=str,
)
def test_what_is_no_state_of_a_loader(state: Any, said: str) -> None:
    for strict in (False, True):
        with pytest.raises(StateError, match=said):
            check_state(state, OWN, strict)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": "d2"}, r"other data .*: data d2 there, d1 here; strict=False"),
        ({"pipeline": "p2"}, r"another pipeline .*: pipeline p2 there, p1 here"),
        ({"batch": "b"}, r"another batch stage .*: batch b there, none here"),
    ],
)
def test_a_state_of_something_else_is_taken_only_if_the_user_says_so(
    changes: dict[str, str], said: str
) -> None:
    with pytest.raises(StateError, match=said):
        check_state(STATE | changes, OWN, True)
    assert check_state(STATE | changes, OWN, False) == STATE | changes
