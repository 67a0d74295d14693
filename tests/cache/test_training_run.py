"""The ranks of a run have the same shards in each epoch."""

import time

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from helpers.cached_loading import Config, ids, load


def test_ranks_agree_on_a_generation_though_it_grows_between_them(config: Config) -> None:
    settings = config(rate_limit="600kB")
    with (
        load(settings, shard={"rank": 0, "world_size": 2}) as one,
        load(settings, shard={"rank": 1, "world_size": 2}) as two,
    ):
        for _ in range(4):
            mine = ids(one)
            time.sleep(0.15)
            steps = len(two)
            theirs = list(two)
            assert steps == len(theirs)
            assert not set(mine) & set(ids(theirs))
            assert abs(len(mine) - len(ids(theirs))) <= 1
        grown = CacheFolder(CacheOptions(**settings["data"]["cache"]))
        assert len(list((grown.dir / "runs").glob("*.json"))) == 1
    assert not list((grown.dir / "runs").glob("*-*"))
    with load(settings, shard={"rank": 1, "world_size": 2}) as later:
        assert not list((grown.dir / "runs").glob("*.json"))
        later.sampler.set_epoch(3)
        assert len(ids(later)) * 2 + 1 >= len(mine) + len(ids(theirs))
