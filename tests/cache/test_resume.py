"""Resuming over a growing cache, and epochs that are not ready."""

import json
import time
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.cache import evict, listing
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from helpers.cached_loading import Config, complete, ids, load
from helpers.loaders import ENGINES


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_a_resume_in_mid_epoch_sees_the_rest_though_the_cache_went_on(
    config: Config, options: dict[str, Any]
) -> None:
    settings = config(max_bytes="600kB", low_water=0.5)
    with load(settings, **options) as loader:
        for _ in range(2):
            ids(loader)
        rest: list[int] = []
        while not rest:  # an epoch is a single batch as long as little is there
            whole = iter(loader)
            before = ids([next(whole)])
            state = json.loads(json.dumps(loader.state_dict()))
            rest = ids(whole)
        folder = CacheFolder(CacheOptions(**settings["data"]["cache"]))
        while True:
            ids(loader)
            folder.commit_log.refresh()
            had = folder.commit_log.live_shards(state["generation"])
            if not had.keys() <= folder.list_present_shards():
                break
            time.sleep(0.1)
    assert before and not set(before) & set(rest)
    with load(settings, **options, batch_size=3) as again:
        again.load_state_dict(state)
        assert ids(again) == rest
        assert again.state_dict()["epoch"] == state["epoch"] + 1


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_the_rest_of_an_epoch_does_not_wait_for_the_next(
    config: Config, options: dict[str, Any]
) -> None:
    settings = config(workers=0, wait=1.5)
    folder = complete(settings)
    with load(settings, **options) as loader:
        before = ids([next(iter(loader))])
        state = loader.state_dict()
    with load(settings, **options) as again:
        again.load_state_dict(state)  # pins its generation
        with folder.lock():
            evict.evict(
                folder, list(folder.commit_log.live_shards()), "no room is left for the next epoch"
            )
        assert sorted(before + ids(again)) == list(range(60))
        with pytest.raises(gpupipe.DataError, match="epoch 1 waits: nothing is in the cache"):
            next(iter(again))


@pytest.mark.parametrize("options", ENGINES, ids=str)
def test_an_epoch_that_was_not_ready_begins_when_it_is(
    config: Config, options: dict[str, Any]
) -> None:
    settings = config(workers=0)
    folder = complete(settings)
    with load(settings, **options) as loader:
        epoch = iter(loader)
        first = ids([next(epoch)])  # pins the generation of epoch 0
        with folder.lock():
            evict.evict(folder, list(folder.commit_log.live_shards()), "epoch 1 has to wait")
        assert sorted(first + ids(epoch)) == list(range(60))
        with load(config(workers=1), **options):  # its worker fetches again
            assert ids(loader)
        assert loader.state_dict()["epoch"] == 2


def test_states_of_another_cache_or_of_long_ago_are_refused(config: Config) -> None:
    settings = config(workers=0)
    folder = complete(settings)
    with load(settings) as loader:
        state = loader.state_dict()
        assert state["generation"] is None
        loader.load_state_dict(state)
        next(iter(loader))
        state = loader.state_dict()
        folder.commit_log.refresh()
        for generation in (0, 99, -1):
            with pytest.raises(
                gpupipe.StateError,
                match=f"the state is of generation {generation}, and the cache in .* has "
                f"{folder.commit_log.generation}:",
            ):
                loader.load_state_dict(state | {"generation": generation})
        lacking = {k: v for k, v in state.items() if k != "generation"}
        with pytest.raises(gpupipe.StateError, match="it lacks 'generation'"):
            loader.load_state_dict(lacking)
    with folder.lock():
        folder.commit_log.evict(["00000002"], "a test")
        folder.remove_leftovers()
    folder.table_path("00000002").unlink()
    with (
        load(settings) as loader,
        pytest.raises(
            gpupipe.StateError,
            match="1 shard of it were evicted too long ago to be made again, the first 00000002",
        ),
    ):
        loader.load_state_dict(state)


def test_the_content_in_a_state_is_that_of_the_listing(config: Config) -> None:
    settings = config(workers=0)
    folder = complete(settings)
    with load(settings, engine="cpu") as loader:
        content = loader.state_dict()["content"]
    assert content["sizes"] == listing.load(folder).sizes.tolist()
    assert set(content["hashes"]) == {None}, "a sample may have to be downloaded"
    subset = loader.index.subset(np.array([3, 5]))
    assert subset.columns["image"].get_sizes(np.array([1])) == [content["sizes"][5]]
