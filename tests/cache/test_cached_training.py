"""Processes that train over one growing cache: they are killed, and share it."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpupipe.cache import evict
from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.settings import CacheOptions
from helpers.cached_loading import Config, alive, complete, ids, load, waited
from helpers.cached_trainer import Trainer


@pytest.fixture
def train() -> Iterator[Callable[[dict[str, Any]], Trainer]]:
    started: list[Trainer] = []

    def start(settings: dict[str, Any]) -> Trainer:
        started.append(Trainer(settings))
        return started[-1]

    yield start
    for trainer in started:
        trainer.kill()


def test_a_trainer_that_is_killed_leaves_no_workers_and_resumes_with_the_same_ids(
    config: Config, train: Callable[..., Trainer]
) -> None:
    settings = config(max_bytes="600kB")
    folder = complete(settings)
    trainer = train(settings)
    steps = trainer.steps(6)
    workers = [c["pid"] for c in waited(lambda: folder.read_claims("workers")).values()]
    trainer.kill()
    waited(lambda: not any(map(alive, workers)))
    with load(settings, engine="dataloader", workers=0) as loader:
        loader.load_state_dict(steps[2][1])
        iterator = iter(loader)
        again = [next(iterator)["id"].tolist() for _ in range(3)]
    assert again == [found for found, *_ in steps[3:]]
    assert steps[2][1]["epoch"] == 0


def test_two_trainers_share_one_cache(config: Config, train: Callable[..., Trainer]) -> None:
    settings = config(max_bytes="600kB", low_water=0.7)
    folder, trainer = complete(settings), train(settings)
    mine: set[int] = set()
    theirs: set[int] = set()
    with load(settings, engine="dataloader", workers=0) as loader:
        end = time.monotonic() + 60
        while min(len(mine), len(theirs)) < 45:
            assert time.monotonic() < end
            mine |= set(ids(loader))
            theirs |= {i for found, *_ in trainer.steps(8) for i in found}
            with folder.lock():
                assert folder.count_bytes() <= 600_000
        pids = {c["pid"] for c in folder.read_claims("workers").values()}
        trainer.kill()
        waited(lambda: sum(map(alive, pids)) == 1)
        assert ids(loader)


def test_a_worker_that_is_killed_is_started_again(config: Config) -> None:
    settings = config(rate_limit="1MB")
    with load(settings) as loader:
        ids(loader)
        folder = CacheFolder(CacheOptions(**settings["data"]["cache"]))
        (pid,) = [c["pid"] for c in waited(lambda: folder.read_claims("workers")).values()]
        os.kill(pid, signal.SIGKILL)
        waited(lambda: not alive(pid))
        sizes = [len(ids(loader))]
        while sizes[-1] < 60:
            time.sleep(0.1)
            sizes.append(len(ids(loader)))
    assert not list((folder.dir / "workers").iterdir())


def test_a_damaged_record_of_an_epoch_is_left_out(make: Any) -> None:
    made = make()
    (made.folder.dir / "epochs.jsonl").write_text(
        '[]\n{"generation": "x"}\n'
        + json.dumps({"generation": 1, "samples": 2, "time": 3.0})
        + "\n"
    )
    assert evict.read_epochs(made.folder) == [evict.Epoch(1, 0, 2, 3.0)]
