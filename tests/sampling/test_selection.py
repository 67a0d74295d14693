"""What a selection says of an epoch, and of states that were made with another one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpupipe.errors import StateError
from gpupipe.sampling.selection import ALL_ONCE, Selection, check_settings


def rows(*chosen: int) -> Selection:
    return Selection(rows=np.array(chosen, np.int64))


def test_selections_overlap_if_a_row_can_be_in_both() -> None:
    assert rows(0, 2, 5).overlaps(rows(5, 7))
    assert not rows(0, 2, 5).overlaps(rows(1, 7))
    assert rows(3).overlaps(ALL_ONCE)
    assert ALL_ONCE.overlaps(rows(3))


@pytest.mark.parametrize(
    ("options", "size", "may_repeat"),
    [
        ({}, 6, False),
        ({"repeats": 3}, 6, True),
        ({"repeats": 3, "epoch_size": "all"}, 18, True),
        ({"epoch_size": "all"}, 6, False),
        ({"epoch_size": 4}, 4, True),
        ({"weights": np.ones(6)}, 6, True),
    ],
    ids=str,
)
def test_epoch_size_and_repeats(options: dict[str, Any], size: int, may_repeat: bool) -> None:
    selection = Selection(**options)
    assert (selection.epoch_size_of(6), selection.may_repeat) == (size, may_repeat)
    assert selection.epoch_size_of(0) == 0


OWN = {"seed": 0, "shuffle": True, "repeats": 2}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 1}, "made with seed 1, and this loader has seed 0: set loader.seed=1, or"),
        ({"shuffle": False}, "made with shuffle false, .* set loader.shuffle=false"),
        ({"repeats": 1}, "made with repeats 1, and this loader has repeats 2"),
        ({"weights": "w"}, "weights 'w', and this loader has weights null: .*weights='w'"),
        ({"subset": "9 ids"}, "set loader.subset to the file with these ids"),
        ({"subset": 0.5}, "set loader.subset=0.5"),
    ],
    ids=str,
)
def test_a_state_with_other_settings_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(StateError, match=message):
        check_settings(OWN | changed, OWN)


def test_a_state_without_a_setting_has_its_default() -> None:
    check_settings(OWN, OWN | {"epoch_size": None})
    with pytest.raises(StateError, match="made with repeats 1, and this loader has repeats 2"):
        check_settings({"seed": 0, "shuffle": True}, OWN)
