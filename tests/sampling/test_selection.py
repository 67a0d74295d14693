"""Selections, states that were made with another one, and mixtures."""

from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.population import Growing
from gpupipe.dataset.source import SOURCES
from gpupipe.errors import StateError
from gpupipe.sampling.selection import (
    ALL_ONCE,
    Mixing,
    Mixture,
    Selection,
    check_settings,
    interleave,
)


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


@pytest.mark.parametrize("name", sorted(SOURCES.builtin_names))
def test_only_remote_grows_and_only_mix_mixes(name: str) -> None:
    source = SOURCES.find(name)
    assert issubclass(source, Growing) == (name == "remote")
    assert issubclass(source, Mixing) == (name == "mix")


def test_remainders_are_given_to_as_many_parts_as_there_are() -> None:
    mixture = Mixture(("a", "b", "c"), (9, 9, 9), (1, 1, 1), "never")
    assert mixture.count_samples(5).tolist() == [2, 2, 1]


@pytest.mark.parametrize("stop", ["first", "all"])
def test_weights_that_have_no_exact_fraction_lose_no_sample(stop: str) -> None:
    for parts in ((1, 3), (3, 7), (1, 49), (7, 9), (1, 2, 4)):
        for tenths in range(1, 40):
            weights = tuple(n * tenths / 10 for n in parts)
            counts = tuple(n * 6 for n in parts)
            names, how = tuple(map(str, parts)), stop
            mixture = Mixture(names, counts, weights, how)  # type: ignore[arg-type]
            assert mixture.count_samples(None).tolist() == list(counts)


def test_any_stretch_is_within_as_many_samples_as_there_are_other_parts() -> None:
    rng = np.random.default_rng(0)
    for parts in (2, 2, 2, 3, 5):
        for _ in range(20):
            counts = rng.integers(1, 60, parts)
            order = interleave(counts)
            assert np.bincount(order).tolist() == counts.tolist()
            taken = np.cumsum(np.eye(parts)[order], axis=0)
            ideal = np.outer(np.arange(1, len(order) + 1), counts / len(order))
            error = np.concatenate([np.zeros((1, parts)), taken - ideal])
            assert np.ptp(error, axis=0).max() <= parts - 1 + 1e-9
            assert np.abs(error).max() <= (parts - 1) / 2 + 1e-9, "as much too early as too late"
