"""The laws, held for boxes and points: to the bit on any engine, in any batch, on any rank, after a
resume, from a server and from Ray.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.server.options import ServerOptions
from gpupipe.server.service import Server
from helpers.annotated_folder import RAGGED, assert_equal, by_sample, load
from helpers.ray_cluster import RayCluster, assert_nothing_left, shared_cluster
from helpers.small_images import shrink_all

STEPS: list[Any] = [
    "decode",
    {"random_zoom_out": {"side_range": [1.0, 2.0]}},
    {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "scale": [0.8, 1.2], "shear": 5}},
    "random_horizontal_flip",
    {"random_apply": {"transforms": [{"random_crop": {"size": 40, "pad_if_needed": True}}]}},
    {
        "random_choice": {
            "transforms": ["random_vertical_flip", {"random_rotation": {"degrees": 9}}]
        }
    },
    {"resize": {"size": [32, 44]}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
Samples = dict[int, dict[str, Any]]


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("laws-of-annotations") / "faces", 56)


@pytest.fixture(scope="module")
def alone(root: Path) -> Samples:
    """Every sample of epoch 0 on the CPU engine, in batches of one."""
    with load(root, STEPS, engine="cpu", batch_size=1, threads=1) as loader:
        return by_sample(loader)


def test_the_data_has_samples_without_boxes(alone: Samples) -> None:
    counts = [len(sample["boxes"]) for sample in alone.values()]
    assert counts.count(0) >= len(counts) // 3
    assert max(counts) > 4
    assert set(RAGGED) < set(next(iter(alone.values())))


@pytest.mark.parametrize(
    "options",
    [
        {"engine": "cpu", "batch_size": 60, "threads": 2},
        {"engine": "cpu", "batch_size": 7, "shuffle": False, "prefetch": 5},
        {"engine": "dali", "batch_size": 13},
        {"engine": "dataloader", "batch_size": 11, "workers": 0},
        {"engine": "dataloader", "batch_size": 11, "workers": 2},
    ],
    ids=str,
)
def test_annotations_depend_neither_on_the_engine_nor_on_the_batch(
    root: Path, alone: Samples, options: dict[str, Any]
) -> None:
    with load(root, STEPS, **options) as loader:
        assert_equal(by_sample(loader), alone)


def test_ranks_share_the_annotations_out(root: Path, alone: Samples) -> None:
    every: Samples = {}
    for rank in range(3):
        shard = {"rank": rank, "world_size": 3}
        with load(root, STEPS, engine="cpu", batch_size=4, shard=shard) as loader:
            mine = by_sample(loader)
        assert not mine.keys() & every.keys()
        every |= mine
    assert_equal(every, alone)


@pytest.mark.parametrize("engine", ["cpu", "dali"])
def test_a_resumed_run_has_the_same_annotations(root: Path, engine: str) -> None:
    with load(root, STEPS, engine=engine, batch_size=8) as loader:
        by_sample(loader)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = by_sample(iterator)  # type: ignore[arg-type]
    with load(root, STEPS, engine=engine, batch_size=5) as loader:
        loader.load_state_dict(state)
        assert_equal(by_sample(loader), rest)


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_annotations_do_not_depend_on_the_decoded_cache(
    root: Path, alone: Samples, where: str
) -> None:
    for engine in ("cpu", "dali", "dataloader"):
        cache = {"where": where, "max_bytes": "40MB"}
        options = {"workers": 0, "batch_size": 9, "engine": engine, "cache_decoded": cache}
        with load(root, STEPS, **options) as loader:
            assert_equal(by_sample(loader), alone)
            loader.sampler.set_epoch(0)
            assert_equal(by_sample(loader), alone)


@contextmanager
def serving(loader: gpupipe.Loader, **options: Any) -> Iterator[Server]:
    """A server of a loader in a thread of this process."""
    with Server(loader, ServerOptions(address="tcp://127.0.0.1:0", **options)) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("ship", ["batch", "uint8"])
def test_a_server_delivers_the_same_annotations(
    root: Path, alone: Samples, transport: str, ship: str
) -> None:
    served = load(root, STEPS, engine="cpu", batch_size=9)
    with (
        serving(served, ship=ship) as server,
        gpupipe.connect(server.address, transport=transport, ids=True, device="cpu") as loader,
    ):
        batch = next(iter(loader))
        assert all(isinstance(batch[name], gpupipe.Ragged) for name in RAGGED)
        del batch
        loader.sampler.set_epoch(0)
        assert_equal(by_sample(loader), alone)


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    yield shared_cluster()
    assert_nothing_left()


@pytest.mark.parametrize("ship", ["batch", "uint8"])
def test_ray_delivers_the_same_annotations(
    root: Path, alone: Samples, cluster: RayCluster, ship: str
) -> None:
    ray = {"workers": 2, "cpus": 1, "engine": "cpu", "ship": ship}
    with load(root, STEPS, engine="ray", batch_size=9, ray=ray) as loader:
        assert_equal(by_sample(loader), alone)


@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
def test_batches_without_any_box_and_samples_with_a_thousand(root: Path, engine: str) -> None:
    options = {"workers": 0, "engine": engine, "shuffle": False}
    with load(root, STEPS, batch_size=1, **options) as loader:
        for number, batch in enumerate(loader):
            if number % 3 == 2:
                assert batch["boxes"].values.shape == (0, 4)
                assert batch["keypoints"].values.shape == (0, 5, 2)
                assert batch["visibility"].values.shape == (0, 5)
                assert batch["labels"].values.dtype == torch.int64
                assert len(batch["boxes"].pad(0.0)[0]) == 1
    with load(root, STEPS, batch_size=6, most=1000, **options) as loader:
        counts = torch.cat([batch["boxes"].counts for batch in loader])
        assert int(counts.max()) > 900


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_batches_without_any_box_travel(root: Path, alone: Samples, transport: str) -> None:
    with (
        serving(load(root, STEPS, engine="cpu", batch_size=1)) as server,
        gpupipe.connect(server.address, transport=transport, ids=True, device="cpu") as loader,
    ):
        sent = by_sample(loader)
    assert_equal(sent, alone)
    assert sent[2]["boxes"].shape == (0, 4)
    assert sent[2]["keypoints"].shape == (0, 5, 2)
