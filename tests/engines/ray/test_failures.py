"""What dies, lags or is broken in the cluster, and what the trainer sees of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from gpupipe.engines.ray.engine import RayEngine
from gpupipe.errors import EngineError, SampleError, TooManyBadError
from helpers.loaders import load
from helpers.ray_batches import FLOATS, PIPELINE, assert_same, batches, local_batches, ray_options
from helpers.ray_cluster import RayCluster


def pids(loader: Any) -> list[int]:
    """The processes of the loader's workers."""
    engine = loader.engine
    assert isinstance(engine, RayEngine)
    return [worker.facts.pid for worker in engine.workers]


def test_killed_actors_and_a_removed_node_change_no_bit(
    cluster: RayCluster, faces: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = local_batches(faces, PIPELINE)
    with load(faces, PIPELINE, **ray_options(2)) as loader:
        actual = []
        for number, batch in enumerate(loader):
            actual.append({name: tensor.clone() for name, tensor in batch.items()})
            if number == 1:
                os.kill(pids(loader)[0], signal.SIGKILL)
        assert_same(actual, expected)
        assert "go to others" in caplog.text
        actual = []
        cluster.add_node()
        for number, batch in enumerate(loader):
            actual.append({name: tensor.clone() for name, tensor in batch.items()})
            if number == 1:
                cluster.remove_node(cluster.nodes[0])
        assert_same(actual, local_batches(faces, PIPELINE, epoch=1))


def test_the_tasks_of_a_worker_that_lags_go_to_another(cluster: RayCluster, faces: Path) -> None:
    expected = local_batches(faces, PIPELINE)
    with load(faces, PIPELINE, **ray_options(2)) as loader:
        iterator = iter(loader)
        actual = [{name: tensor.clone() for name, tensor in next(iterator).items()}]
        paused = pids(loader)[0]
        os.kill(paused, signal.SIGSTOP)
        try:
            actual += batches(iterator)
        finally:
            os.kill(paused, signal.SIGCONT)
        assert_same(actual, expected)


@pytest.fixture
def broken(tmp_path: Path, faces: Path) -> tuple[Path, Path]:
    """A copy of the faces, and a file in it that is cut off."""
    root = tmp_path / "broken"
    shutil.copytree(faces, root)
    file = sorted(root.rglob("*.jpg"))[20]
    file.write_bytes(file.read_bytes()[:1000])
    return root, file


def test_a_corrupt_sample_is_the_same_error_and_names_the_node(
    cluster: RayCluster, broken: tuple[Path, Path]
) -> None:
    root, file = broken
    with load(root, PIPELINE, shuffle=False, **ray_options(2)) as loader:
        iterator = iter(loader)
        ids = []
        with pytest.raises(SampleError, match=r"cut off.*on node \S+ \(") as error:
            for batch in iterator:
                ids += batch["id"].tolist()
        assert ids == list(range(14)), "the batches before it were delivered"
        assert error.value.path == str(file)


def test_skipped_samples_are_listed_at_the_trainer(
    cluster: RayCluster, broken: tuple[Path, Path], tmp_path: Path
) -> None:
    root, file = broken
    options = {"on_error": "skip", "max_bad": 0.02, "quarantine": tmp_path / "bad.jsonl"}
    with load(root, PIPELINE, **ray_options(2), **options) as loader:
        for _ in range(2):
            ids = [id for batch in loader for id in batch["id"].tolist()]
            assert sorted(ids) == [n for n in range(60) if n != 20]
        assert loader.engine.skipped == 1
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == str(file)
    options["max_bad"] = 0.01
    with (
        load(root, PIPELINE, **ray_options(1), **options) as loader,
        pytest.raises(TooManyBadError, match="1 of 60"),
    ):
        batches(loader)


def test_what_cannot_work_is_refused_at_the_start(cluster: RayCluster, faces: Path) -> None:
    with pytest.raises(EngineError, match=r"of 4 workers.*gave up after 2 seconds.*ray\.wait"):
        load(faces, PIPELINE, **ray_options(4, wait=2))
    with pytest.raises(EngineError, match=r"each with 2 CPUs.*largest node has 1"):
        load(faces, PIPELINE, **ray_options(1, cpus=2, wait=1))
    with pytest.raises(EngineError, match=r"10\.0\.0\.1:6379"):
        load(faces, PIPELINE, **ray_options(1, address="10.0.0.1:6379"))
    with pytest.raises(EngineError, match=r"object store .* too small"):
        load(faces, FLOATS, hwm=1000, **{**ray_options(1), "batch_size": 60})
