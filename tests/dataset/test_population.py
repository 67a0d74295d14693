"""Which sources grow, are read elsewhere in another way, or mix others."""

from __future__ import annotations

import numpy as np
import pytest

from gpupipe.dataset.population import (
    Growing,
    Mixing,
    Mixture,
    PartlyAvailable,
    ReadThrough,
    interleave,
)
from gpupipe.dataset.source import SOURCES


@pytest.mark.parametrize("name", sorted(SOURCES.builtin_names))
def test_only_remote_grows_and_only_mix_mixes(name: str) -> None:
    source = SOURCES.find(name)
    for hook in (Growing, ReadThrough, PartlyAvailable):
        assert issubclass(source, hook) == (name == "remote"), hook
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
