"""The laws, held for boxes and points: to the bit on any engine, in any batch, on any rank, after a
resume, from a server and from Ray.
"""

import json
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from gpupipe.server.options import ServerOptions
from gpupipe.server.service import Server
from helpers.annotated_folder import POINTS, RAGGED, assert_equal, by_sample, load
from helpers.loaders import ENGINES_AND_BATCHES
from helpers.ray_cluster import RayCluster
from helpers.ray_cluster import cluster as cluster  # noqa: PLC0414  # a fixture
from helpers.served import running
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
IN_PROCESS = {"engine": "dataloader", "batch_size": 11, "workers": 0}
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


@pytest.mark.parametrize("options", [*ENGINES_AND_BATCHES, IN_PROCESS], ids=str)
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
    root: Path, alone: Samples, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_SHM", str(tmp_path))  # in place of /dev/shm, where it would stay
    for engine in ("cpu", "dali", "dataloader"):
        cache = {"where": where, "max_bytes": "40MB"}
        options = {"workers": 0, "batch_size": 9, "engine": engine, "cache_decoded": cache}
        with load(root, STEPS, **options) as loader:
            assert_equal(by_sample(loader), alone)
            loader.sampler.set_epoch(0)
            assert_equal(by_sample(loader), alone)


def serving(loader: gpupipe.Loader, **options: Any) -> AbstractContextManager[Server]:
    return running(Server(loader, ServerOptions(address="tcp://127.0.0.1:0", **options)))


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


def list_counts(batch: Any, options: dict[str, Any]) -> list[int]:
    """Check the shapes of all that a batch has, and return the number of boxes of each sample."""
    format, shapes = options.get("format", "dict"), options.get("shapes", "equal")
    images, targets = batch if format == "torchvision" else (batch["image"], [batch])
    if format == "detr":
        targets = batch["targets"]
        assert batch["mask"].shape == (len(images), *images.shape[-2:])
    assert isinstance(images, list) == (format == "torchvision" or shapes == "list")
    assert all(image.shape[0] == 3 and image.dtype == torch.float32 for image in images)
    if options.get("targets") == "padded":
        counts: list[int] = batch["num_boxes"].tolist()
        rows = [
            {name: batch[name][n, :count] for name in RAGGED[:4]} for n, count in enumerate(counts)
        ]
        assert batch["boxes"].shape == (len(images), max(counts), 4)
        assert batch["keypoints"].shape == (len(images), max(counts), POINTS, 2)
    elif format == "dict":
        rows = [{name: batch[name][n] for name in RAGGED} for n in range(len(images))]
    else:
        rows = targets
    for of_sample in rows:
        count, columns = len(of_sample["boxes"]), 3 if format == "torchvision" else 2
        assert of_sample["boxes"].shape == (count, 4)
        assert torch.isfinite(torch.as_tensor(of_sample["boxes"])).all()
        assert (of_sample["labels"].shape, of_sample["labels"].dtype) == ((count,), torch.int64)
        assert of_sample["keypoints"].shape == (count, POINTS, columns)
        if format != "torchvision":
            assert of_sample["visibility"].shape == (count, POINTS)
    assert len(rows) == len(images)
    return [len(of_sample["boxes"]) for of_sample in rows]


UNEQUAL = [*STEPS[:5], STEPS[-1]]
FORMATS: list[dict[str, Any]] = [
    {},
    {"targets": "padded"},
    {"targets": "list"},
    {"shapes": "list"},
    {"shapes": "padded", "targets": "padded"},
    {"format": "torchvision", "shapes": "list"},
    {"format": "detr", "shapes": "padded"},
]


def check_counts(loader: gpupipe.Loader, options: dict[str, Any], most: int) -> None:
    counts = [count for batch in loader for count in list_counts(batch, options)]
    assert len(counts) == len(loader.index)
    assert counts.count(0) >= len(counts) // 3
    assert 0.9 * most <= max(counts) <= most


@pytest.mark.parametrize("most", [0, 1000])
@pytest.mark.parametrize("options", FORMATS, ids=str)
@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
def test_no_box_and_a_thousand_boxes_have_the_right_shapes(
    root: Path, engine: str, options: dict[str, Any], most: int
) -> None:
    steps = STEPS if "shapes" not in options else UNEQUAL
    settings = {"engine": engine, "workers": 0, "batch_size": 5, **options}
    with load(root, steps, most=most, **settings) as loader:
        check_counts(loader, options, most)


@pytest.mark.parametrize("most", [0, 1000])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("options", FORMATS[3:], ids=str)
def test_no_box_and_a_thousand_boxes_travel(
    root: Path, transport: str, options: dict[str, Any], most: int
) -> None:
    with (
        serving(load(root, UNEQUAL, engine="cpu", batch_size=5, most=most, **options)) as server,
        gpupipe.connect(server.address, transport=transport, device="cpu", **options) as loader,
    ):
        check_counts(loader, options, most)


@pytest.mark.parametrize("most", [0, 1000])
def test_no_box_and_a_thousand_boxes_on_ray(root: Path, cluster: RayCluster, most: int) -> None:
    ray = {"workers": 2, "cpus": 1, "engine": "cpu"}
    with load(
        root, UNEQUAL, engine="ray", shapes="list", batch_size=5, ray=ray, most=most
    ) as loader:
        check_counts(loader, {"shapes": "list"}, most)
