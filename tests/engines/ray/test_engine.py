"""The batches of the Ray engine are those of the local engine, whichever worker makes them."""

import logging
import re
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gpupipe
from gpupipe.config import LoaderConfig
from gpupipe.engines import registry
from gpupipe.engines.base import Job
from gpupipe.engines.ray import dispatcher, engine
from gpupipe.engines.ray.engine import RayEngine, choose_window, split_job
from gpupipe.errors import EngineError
from gpupipe.runtime.installation import install_command
from helpers.loaders import load
from helpers.ray_batches import (
    FLOATS,
    OPTIONS,
    PIPELINE,
    assert_same,
    batches,
    job_of,
    local_batches,
    ray_options,
)
from helpers.ray_cluster import RayCluster, wait_until


def test_epochs_are_those_of_the_local_engine_also_after_leaving_one_early(
    cluster: RayCluster, faces: Path
) -> None:
    expected = local_batches(faces, FLOATS)
    # The first node has room for one of them.
    with load(faces, FLOATS, **ray_options(2, placement="local_first")) as loader:
        assert len(loader) == 9
        start = loader.state_dict()
        assert_same(batches(loader), expected)
        assert_same(batches(loader), local_batches(faces, FLOATS, epoch=1))
        loader.load_state_dict(start)
        iterator = iter(loader)
        for _ in range(4):
            next(iterator)
        state = loader.state_dict()
        for _ in range(3):
            loader.load_state_dict(state)
            next(iter(loader))
        loader.load_state_dict(state)
        assert_same(batches(loader), expected[4:])
        del iterator


def test_workers_follow_the_waiting_from_1_to_3_and_back_and_change_no_bit(
    cluster: RayCluster,
    faces: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dispatcher, "PERIOD", 0.3)
    most, pause = 1, 0.0
    with (
        load(faces, PIPELINE, **ray_options((1, 3))) as loader,
        load(faces, PIPELINE, engine="cpu", **OPTIONS) as local,
    ):
        first = list(loader.engine.pool.ready)
        while most < 3 or loader.engine.traits.parallelism > 1:
            epoch, before, actual = loader.sampler.epoch, list(loader.engine.pool.ready), []
            for batch in loader:
                actual.append({name: tensor.clone() for name, tensor in batch.items()})
                del batch
                most = max(most, len(loader.engine.pool.ready))
                pause = 0.2 if most == 3 else 0.0
                time.sleep(pause)
            if loader.engine.pool.ready != before:
                local.sampler.set_epoch(epoch)
                assert_same(actual, batches(local))
        assert list(loader.engine.pool.ready) == first, "those that came last leave"
    for change in ("2 instead of 1", "3 instead of 2", "2 instead of 3", "1 instead of 2"):
        assert change in caplog.text


def test_whole_batches_keep_their_strides_and_can_be_written(
    cluster: RayCluster, faces: Path
) -> None:
    options = {"memory_format": "channels_last", "dtype": "bfloat16"}
    expected = local_batches(faces, FLOATS, **options)
    with load(faces, FLOATS, **ray_options(1, ship="batch"), **options) as loader:
        actual = list(loader)
        assert_same(actual, expected)
        assert actual[0]["image"].stride() == expected[0]["image"].stride()
        actual[0]["image"].zero_()
        assert not actual[0]["image"].any()
        del actual


def test_two_trainers_deliver_each_sample_once_and_three_resume_them(
    cluster: RayCluster, faces: Path
) -> None:
    """Each of the trainers has a worker of its own."""
    ids, states = [], []
    for rank in range(2):
        with load(
            faces, PIPELINE, shard={"rank": rank, "world_size": 2}, **ray_options(1)
        ) as loader:
            iterator = iter(loader)
            for _ in range(2):
                ids += next(iterator)["id"].tolist()
            states.append(loader.state_dict())
            del iterator
    assert states[0] == states[1]
    for rank in range(3):
        with load(
            faces, PIPELINE, shard={"rank": rank, "world_size": 3}, **ray_options(1)
        ) as loader:
            loader.load_state_dict(states[0])
            ids += [id for batch in loader for id in batch["id"].tolist()]
    assert sorted(ids) == list(range(60))


def test_a_remote_store_is_read_through_a_cache_of_each_node(
    cluster: RayCluster, faces: Path, tmp_path: Path
) -> None:
    pytest.importorskip("diskcache", reason="needs the extra remote")
    cache = {"dir": str(tmp_path / "cache"), "max_bytes": "1GB"}
    config = {
        "data": {"source": "remote", "url": f"file://{faces}", "cache": cache},
        "pipeline": FLOATS,
        "loader": {"device": "cpu", "ids": True},
    }
    with gpupipe.load(config, **ray_options(2)) as loader:
        epochs = [batches(loader) for _ in range(2)]
    for number, epoch in enumerate(epochs):
        assert_same(epoch, local_batches(faces, FLOATS, epoch=number))
    kept = sum(file.stat().st_size for file in (tmp_path / "cache").rglob("*") if file.is_file())
    assert kept >= sum(file.stat().st_size for file in faces.rglob("*.jpg"))


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EngineError, match=re.escape(install_command("ray"))):
        registry.find("ray")


def keys_of(job: Job) -> list[str]:
    return [entry.key for entry in job.pipeline.entries]


@pytest.mark.parametrize(("ship", "left"), [("uint8", ["to_dtype"]), ("batch", [])])
def test_the_last_steps_on_uint8_are_left_to_the_trainer(
    faces: Path, ship: str, left: list[str]
) -> None:
    job = job_of(faces, dtype="float16", ray={"ship": ship, "cpus": 3})
    theirs, tail = split_job(job)
    assert keys_of(tail) == left
    assert keys_of(theirs) + left == keys_of(job)
    assert theirs.loader.dtype == (None if left else "float16")
    assert tail.loader.dtype == ("float16" if left else None)
    assert theirs.threads == theirs.loader.threads == 3


def test_a_dataloader_in_a_worker_does_not_fork_it(faces: Path) -> None:
    for context, theirs in ((None, "forkserver"), ("fork", "forkserver"), ("spawn", "spawn")):
        job = job_of(faces, engine="dataloader", multiprocessing_context=context, workers=2)
        assert split_job(job)[0].loader.multiprocessing_context == theirs


class Opened:
    """In place of a cluster or of the workers: notes its name when it is closed."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self.closed = name, closed
        self.target, self.depth, self.ready = 1, 2, list[Any]()
        self.changed = threading.Condition()

    def start(self) -> None:
        pass

    def object_store_bytes(self) -> int:
        return 10**9

    def close(self) -> None:
        self.closed.append(self.name)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch, cache: Path) -> list[str]:
    """The order in which an engine without Ray closes what it opened."""
    names: list[str] = []
    monkeypatch.setattr(engine, "connect", lambda address: Opened("cluster", names))
    monkeypatch.setattr(engine, "RayWorkerPool", lambda *arguments: Opened("workers", names))
    monkeypatch.setattr(RayEngine, "_choose_window", lambda self: 2)
    return names


def test_an_engine_without_a_thread_for_its_status_closes_what_it_opened(
    faces: Path, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(describe: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(engine, "StatusFile", fail)
    with pytest.raises(RuntimeError, match="new thread"):
        RayEngine(job_of(faces, ray={"workers": 1}), None)
    assert closed == ["workers", "cluster"]


def test_an_engine_that_is_dropped_is_freed(faces: Path, closed: list[str]) -> None:
    dropped = weakref.ref(RayEngine(job_of(faces, ray={"workers": 1}), None))
    wait_until(lambda: dropped() is None, "the engine stays")


TEN_MB, STORE = 10_000_000, 200_000_000


def loader_of(**options: Any) -> LoaderConfig:
    return LoaderConfig.model_validate({"prefetch": 2, **options})


def test_a_window_that_fits_is_taken() -> None:
    assert choose_window(loader_of(hwm=12), 20, TEN_MB, STORE) == 12
    assert choose_window(loader_of(), 1000, 0, STORE) == 1000, "the size is not known"


def test_a_default_window_shrinks_to_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpupipe"):
        assert choose_window(loader_of(), 13, TEN_MB, STORE) == 12
    assert "200 MB" in caplog.text and "10.0 MB" in caplog.text


def test_an_explicit_window_that_does_not_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(EngineError, match=r"17 batches of 10\.0 MB need 170 MB, and 80% of 200 MB"):
        choose_window(loader_of(hwm=13), 1, TEN_MB, STORE)


def test_trainers_of_a_node_share_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineError, match="--object-store-memory"):
        choose_window(loader_of(), 10, 4 * TEN_MB, STORE)
    monkeypatch.setattr(engine, "ranks_on_machine", lambda: 2)
    assert choose_window(loader_of(hwm=4), 1, TEN_MB, STORE) == 4
    with pytest.raises(EngineError):
        choose_window(loader_of(hwm=5), 1, TEN_MB, STORE)


class _Breaking:
    """A dispatcher that breaks with an exception which is no Exception."""

    def __init__(self, where: str) -> None:
        self._where = where

    def start(self) -> None:
        if self._where == "start":
            raise SystemExit("broken in start")

    def take(self) -> None:
        raise SystemExit("broken in take")

    def end(self) -> None:
        pass


@pytest.mark.parametrize("where", ["start", "take"])
def test_what_ends_the_thread_of_deliveries_reaches_the_consumer(where: str) -> None:
    """Any exception: else the consumer waits for ever."""
    job: Any = SimpleNamespace(loader=LoaderConfig())
    nothing: Any = None
    dispatching: Any = _Breaking(where)
    delivery = engine.Delivery(job, dispatching, nothing, nothing)
    delivery.start()
    with pytest.raises(SystemExit, match=f"broken in {where}"):
        next(iter(delivery))
    delivery.join(60)
    assert not delivery.is_alive()
