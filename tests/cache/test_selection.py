"""repeats, weights and epoch_size over a growing cache; a subset of it is refused."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from helpers.cached_loading import STEPS, Config, complete, ids, load
from helpers.loaders import ENGINES

SELECTIONS: list[dict[str, Any]] = [
    {"repeats": 3},
    {"repeats": 2, "epoch_size": "all"},
    {"epoch_size": 25},
    {"weights": "class_balanced", "epoch_size": 100},
]


@pytest.mark.parametrize("selection", SELECTIONS, ids=str)
def test_a_whole_cache_is_like_any_other_data(
    config: Config, faces: Path, selection: dict[str, Any]
) -> None:
    settings = config(workers=0)
    complete(settings)
    plain = {"data": {"source": "folder", "root": str(faces)}, "pipeline": STEPS}
    with load(settings, **selection) as loader, load(plain, **selection) as ordinary:
        for _ in range(2):
            assert len(loader) == len(ordinary)
            assert loader.sampler.epoch_size == ordinary.sampler.epoch_size
            for a, b in zip(loader, ordinary, strict=True):
                assert a["id"].tolist() == b["id"].tolist()
                assert (a["image"] == b["image"]).all()


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_epochs_of_a_cache_that_grows_are_exact_and_resume(
    config: Config, options: dict[str, Any]
) -> None:
    selection = {"repeats": 2, "epoch_size": "all", **options}
    settings = config()
    with load(settings, **selection) as loader:
        for _ in range(3):
            expected, found = len(loader), list(loader)
            assert len(found) == expected
            assert set(Counter(ids(found)).values()) == {2}
        rest: list[int] = []
        while not rest:  # an epoch is a single batch as long as little is there
            whole = iter(loader)
            next(whole)
            state = loader.state_dict()
            rest = ids(whole)
    assert (state["repeats"], state["epoch_size"]) == (2, "all")
    with load(settings, **selection) as again:
        again.load_state_dict(state)
        assert ids(again) == rest
    with load(settings, **options) as other, pytest.raises(gpupipe.StateError, match="repeats 2"):
        other.load_state_dict(state)


def test_a_subset_is_refused_with_what_to_write(config: Config) -> None:
    with pytest.raises(
        gpupipe.ConfigError,
        match=r"loader\.subset: data\.source remote has other samples in every epoch.*"
        r"leave loader\.subset out, .*data\.manifest",
    ):
        load(config(workers=0), subset=0.5)
