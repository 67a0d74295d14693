"""gpupipe tune and the decoded cache: when it is tried, what it takes, and what is advised."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpupipe import config as configs
from gpupipe.bench import candidates, tune
from gpupipe.bench.candidates import (
    CACHE_SETTING,
    CacheCandidate,
    find_cache_candidate,
    list_candidates,
)
from gpupipe.bench.comparison import Contestant
from gpupipe.bench.contestant import Contest, ContestOutcome
from gpupipe.bench.tune import Tuner, describe_tuning
from gpupipe.config import LoaderConfig
from gpupipe.decoded_cache.location import cache_folder, own_shared_memory
from gpupipe.engines.cpu.engine import CpuEngine
from gpupipe.engines.dali.engine import DaliEngine
from gpupipe.engines.dataloader.engine import DataLoaderEngine
from gpupipe.loading.assembly import resolve
from helpers.decoded_caches import MEMORY
from helpers.decoded_caches import shared_memory as shared_memory  # noqa: PLC0414  # a fixture

RESIZE = {"resize": {"size": [60, 90]}}
FLIP = "random_horizontal_flip"


def candidate(root: Path, *steps: Any, on_gpu: bool = False, **changes: Any) -> Any:
    written = {"data": {"source": "folder", "root": str(root)}, "pipeline": ["decode", *steps]}
    config = configs.read(written, **{"device": "cpu", **changes})
    return find_cache_candidate(resolve(config), config.source.index(), on_gpu)


def test_it_holds_what_the_first_steps_make(faces: Path) -> None:
    resized, whole = candidate(faces, RESIZE, FLIP), candidate(faces, FLIP)
    assert (resized.samples, resized.sample_bytes) == (60, 60 * 90 * 3)
    assert (whole.samples, whole.sample_bytes) == (60, 250 * 250 * 3)
    assert resized.needed_bytes >= 60 * 60 * 90 * 3
    assert list_candidates(LoaderConfig(), CpuEngine, False, 2, resized)[CACHE_SETTING] == [
        {"where": "memory", "max_bytes": "2MB"}
    ]


def test_it_is_not_tried_where_it_is_of_no_use(
    faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert candidate(faces, FLIP, **{CACHE_SETTING: MEMORY}) is None
    assert candidate(faces, FLIP, on_gpu=True, engine="dali") is None
    assert candidate(faces, FLIP, on_gpu=True, engine="cpu") is not None
    assert candidate(faces, pipeline=[{"decode": {"dtype": "uint16"}}]) is None
    monkeypatch.setattr(candidates, "_MAX_SHARE", 1e-9)
    assert candidate(faces, FLIP) is None


def tune_it(samples: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, list[str]]:
    """Tune on a machine where 100 images take a second, and with the cache half of that."""
    now = 0.0

    def trial(contestant: Contestant, contest: Contest) -> ContestOutcome:
        nonlocal now
        now += 5
        seconds = 5.0 if CACHE_SETTING in contestant.changes else 10.0
        return ContestOutcome("cpu", "cpu", "2 threads", 1000, 10, seconds, 0.1, 1.0, 1)

    monkeypatch.setattr(tune.time, "monotonic", lambda: now)
    found = CacheCandidate(samples, 1e6)
    contest = Contest("lfw", (), {}, (0,), 0, 2, False)
    options = LoaderConfig(batch_size=64)
    tuner = Tuner(contest, options, 2, 200, lambda *_: None, trial, found.samples)
    result = tuner.run({CACHE_SETTING: [found.options]})
    return result, describe_tuning(result, 64)


def test_what_is_advised_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    result, printed = tune_it(1000, monkeypatch)
    options = {"where": "memory", "max_bytes": "1100MB"}
    assert result.changes == {CACHE_SETTING: options}
    end = printed.index("", printed.index("") + 1)
    advised = yaml.safe_load("\n".join(printed[printed.index("") : end]))
    assert advised == {"data": {"cache_decoded": options}}
    assert "takes up to 1100MB of memory" in printed[end + 1]


def test_it_is_not_tried_where_an_epoch_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = tune_it(100_000, monkeypatch)
    assert (result.trials, result.untried) == ([], [CACHE_SETTING])


def test_the_caches_of_a_search_are_removed(shared_memory: Path) -> None:
    with own_shared_memory():
        folder = cache_folder("memory")
        assert folder.parent.parent == shared_memory
        folder.mkdir()
    assert list(shared_memory.iterdir()) == []
    assert os.environ["GPUPIPE_SHM"] == str(shared_memory)


def test_what_is_tried() -> None:
    options = LoaderConfig(batch_size=64)
    assert list_candidates(options, DaliEngine, False, 4) == {
        "threads": [2, 4, 6],
        "prefetch": [1, 2, 4],
        "batch_size": [32, 64, 128],
    }
    assert list_candidates(options, DaliEngine, True, 4).keys() == {
        "threads",
        "prefetch",
        "hw_decoder_load",
        "batch_size",
    }
    assert list_candidates(options, DataLoaderEngine, True, 4) == {
        "workers": [0, 2, 4, 6],
        "prefetch": [1, 2, 4],
        "batch_size": [32, 64, 128],
    }
    assert list_candidates(LoaderConfig(batch_size=1), DaliEngine, False, 1) == {
        "threads": [1, 2],
        "prefetch": [1, 2, 4],
        "batch_size": [1, 2],
    }
