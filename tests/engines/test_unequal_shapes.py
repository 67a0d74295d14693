"""Images of unequal size, as lists and padded, on every engine and over every transport."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import gpupipe
from gpupipe import config as configs
from gpupipe.engines.cpu import samples, stages
from gpupipe.loading.batch_format import BatchFormat
from gpupipe.runtime.installation import find_extension
from helpers import annotated_folder
from helpers.loaders import load
from helpers.ray_cluster import RayCluster
from helpers.ray_cluster import cluster as cluster  # noqa: PLC0414  # a fixture
from helpers.served import serving

STEPS: list[Any] = [
    "decode",
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]}},
]
ENGINES = ["cpu", "dali", "dataloader"]
COUNT = 13


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PNGs of different sizes, three of them alike, so that decoders agree in every bit."""
    folder = tmp_path_factory.mktemp("unequal") / "a"
    folder.mkdir()
    rng = np.random.default_rng(4)
    for n in range(COUNT):
        high, wide = (30, 40) if n < 3 else rng.integers(9, 60, 2).tolist()
        pixels = rng.integers(0, 256, (high, wide, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{n:02}.png")
    return folder.parent


def images_of(loader: Any) -> dict[int, torch.Tensor]:
    return {
        int(number): image
        for batch in loader
        for number, image in zip(batch["id"], batch["image"], strict=True)
    }


@pytest.fixture(scope="module")
def alone(root: Path) -> dict[int, torch.Tensor]:
    with load(root, STEPS, engine="cpu", batch_size=1) as loader:
        return images_of(loader)


def cut_padding(loader: Any, pad_to: int = 16) -> dict[int, torch.Tensor]:
    """Return the images of padded batches without the padding, which is checked."""
    found = {}
    for batch in loader:
        images, mask, sizes = (batch[f"image{name}"] for name in ("", "_mask", "_sizes"))
        high, wide = images.shape[-2:]
        assert (high % pad_to, wide % pad_to) == (0, 0)
        assert high - int(sizes[:, 0].max()) < pad_to
        assert wide - int(sizes[:, 1].max()) < pad_to
        assert mask.shape == (len(images), high, wide)
        for n, (rows, columns) in enumerate(sizes.tolist()):
            assert int(mask[n].sum()) == rows * columns
            assert mask[n, :rows, :columns].all()
            assert (images[n][:, ~mask[n]] == 0).all()
            found[int(batch["id"][n])] = images[n, :, :rows, :columns].clone()
    return found


def assert_same(one: dict[int, torch.Tensor], other: dict[int, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for number, image in one.items():
        assert image.shape == other[number].shape
        assert (image - other[number]).abs().max() < 0.021  # one level of 255, over std


@pytest.mark.parametrize("engine", ENGINES)
def test_lists_hold_each_image_as_it_is(
    root: Path, alone: dict[int, torch.Tensor], engine: str
) -> None:
    options = {"engine": engine, "batch_size": 5, "workers": 0, "shapes": "list"}
    with load(root, STEPS, **options) as loader:
        assert_same(images_of(loader), alone)
        loader.sampler.set_epoch(0)
        assert_same(images_of(loader), alone)


@pytest.mark.parametrize("engine", ENGINES)
def test_padded_images_come_with_sizes_and_a_mask(
    root: Path, alone: dict[int, torch.Tensor], engine: str
) -> None:
    options = {"engine": engine, "batch_size": 5, "workers": 0, "shapes": "padded", "pad_to": 32}
    with load(root, STEPS, **options) as loader:
        assert_same(cut_padding(loader, pad_to=32), alone)


def test_batches_of_equal_images_take_the_same_form(root: Path) -> None:
    equal = [*STEPS[:1], {"resize": {"size": [16, 24]}}, *STEPS[1:]]
    for engine in ENGINES:
        options = {"engine": engine, "batch_size": 5, "workers": 0, "shuffle": False}
        with load(root, equal, **options) as loader:
            expected = next(iter(loader))["image"]
        with load(root, equal, shapes="list", **options) as loader:
            listed = next(iter(loader))["image"]
        assert torch.equal(torch.stack(listed), expected)
        with load(root, equal, shapes="padded", **options) as loader:
            batch = next(iter(loader))
        assert torch.equal(batch["image"], expected)
        assert batch["image_mask"].all()
        assert list(batch) == ["label", "image", "image_mask", "image_sizes", "id"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_broken_sample_is_left_out(root: Path, tmp_path: Path, engine: str) -> None:
    folder = tmp_path / "data" / "a"
    folder.mkdir(parents=True)
    for file in sorted((root / "a").iterdir()):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "05.png").write_bytes(b"no image")
    options: dict[str, Any] = {"engine": engine, "batch_size": 6, "workers": 0, "max_bad": 0.5}
    quarantine = tmp_path / "bad.jsonl"
    options |= {"on_error": "skip", "quarantine": quarantine}
    with load(folder.parent, STEPS, shapes="list", **options) as loader:
        assert images_of(loader).keys() == set(range(COUNT)) - {5}
    with load(folder.parent, STEPS, shapes="padded", pad_to=16, **options) as loader:
        assert cut_padding(loader).keys() == set(range(COUNT)) - {5}


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_server_sends_unequal_images(
    root: Path, alone: dict[int, torch.Tensor], transport: str
) -> None:
    written = {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": STEPS,
        "loader": {"engine": "cpu", "device": "cpu", "batch_size": 5, "shapes": "list"},
    }
    with (
        serving(written, ship="batch") as server,
        gpupipe.connect(server.address, transport=transport, ids=True, device="cpu") as loader,
    ):
        assert_same(images_of(loader), alone)


def test_the_client_of_a_server_pads(root: Path, alone: dict[int, torch.Tensor]) -> None:
    written = {
        "data": {"source": "folder", "root": str(root)},
        "pipeline": STEPS,
        "loader": {"engine": "cpu", "device": "cpu", "batch_size": 5, "shapes": "padded"},
    }
    with (
        serving(written, ship="batch") as server,
        gpupipe.connect(server.address, pad_to=16, ids=True, device="cpu") as loader,
    ):
        assert_same(cut_padding(loader), alone)


def test_ray_sends_unequal_images(
    root: Path, alone: dict[int, torch.Tensor], cluster: RayCluster
) -> None:
    ray = {"workers": 1, "cpus": 1, "engine": "cpu"}
    with load(root, STEPS, engine="ray", batch_size=5, ray=ray, shapes="list") as loader:
        assert_same(images_of(loader), alone)


def test_detectors_get_images_of_their_own_size(root: Path) -> None:
    options: dict[str, Any] = {"engine": "cpu", "batch_size": 5, "shapes": "padded"}
    with annotated_folder.load(root, STEPS[:3], format="torchvision", **options) as loader:
        images, targets = next(iter(loader))
    for image, target in zip(images, targets, strict=True):
        assert tuple(image.shape[1:]) == target["boxes"].canvas_size
    options["shapes"] = "list"
    with annotated_folder.load(root, STEPS[:3], format="detr", **options) as loader:
        batch = next(iter(loader))
    for mask, target in zip(batch["mask"], batch["targets"], strict=True):
        high, wide = target["size"].tolist()
        assert not mask[:high, :wide].any()
        assert int((~mask).sum()) == high * wide
        assert (target["boxes"] <= 1.0).all()


def test_unequal_images_are_an_error_by_default(root: Path) -> None:
    with (
        load(root, STEPS, engine="cpu", batch_size=13) as loader,
        pytest.raises(gpupipe.ShapeError, match="differ in size"),
    ):
        images_of(loader)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"loader": {"memory_format": "channels_last"}}, "needs memory_format: contiguous"),
        ({"batch": [{"mixup": {"alpha": 0.2}}]}, "mixup takes images of one size"),
    ],
)
def test_settings_that_need_equal_images_are_refused(
    root: Path, changes: dict[str, Any], why: str
) -> None:
    written = {"data": {"source": "folder", "root": root}, "pipeline": STEPS} | changes
    with pytest.raises(gpupipe.ConfigError, match=why):
        configs.read(written, shapes="list")


@pytest.mark.skipif(find_extension() is None, reason="the extensions are not built")
@pytest.mark.parametrize(
    ("steps", "dtype"),
    [
        (STEPS, None),
        ([*STEPS, {"random_erasing": {"p": 1.0}}], None),
        ([*STEPS, {"random_erasing": {"p": 1.0, "value": "random"}}], "float16"),
        ([*STEPS, {"random_erasing": {"p": 1.0, "value": "random"}}], "bfloat16"),
    ],
    ids=["plain", "erased", "float16 noise", "bfloat16 noise"],
)
def test_jpegs_of_unequal_size_run_in_the_extension(
    steps: list[Any], dtype: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    rng = np.random.default_rng(5)
    for n in range(COUNT):
        pixels = rng.integers(0, 256, (*rng.integers(9, 60, 2), 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{n:02}.jpg")
    with load(tmp_path, steps, engine="cpu", batch_size=1, dtype=dtype) as loader:
        alone = images_of(loader)
    run: list[int] = []
    failed: list[int] = []

    def run_native(native: Any, rows: range) -> list[int]:
        found = stages.run_native(native, rows)
        run.extend(rows)
        failed.extend(found)
        return found

    monkeypatch.setattr(samples, "run_native", run_native)
    options = {"engine": "cpu", "batch_size": 5, "last_batch": "partial", "dtype": dtype}
    with load(tmp_path, steps, shapes="list", **options) as loader:
        assert_same(images_of(loader), alone)
    assert len(run) >= COUNT, "the next epoch may have begun"
    assert failed == []

    def join_padded(*arguments: Any) -> None:
        raise AssertionError("the engine writes images to the padded tensor itself")

    monkeypatch.setattr(BatchFormat, "_join_padded", join_padded)
    with load(tmp_path, steps, shapes="padded", pad_to=16, **options) as loader:
        for _ in range(3):  # in memory that is used again
            assert_same(cut_padding(loader), alone)
            loader.sampler.set_epoch(0)
    assert failed == []
