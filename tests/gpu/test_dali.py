"""The GPU path, on a GPU: it agrees with the CPU, and every law holds there too."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers.either_device import DEVICE, TYPE
from helpers.full_product import IS_FULL
from helpers.loaders import loading
from helpers.reference import by_id, reference

pytestmark = pytest.mark.either_device

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
FLOOR_DB = {
    "affine": 33.0,
    "affine_heavy": 30.0,
    "imagenet_train": 38.0,
    "imagenet_eval": 38.0,
}
"""Least PSNR of the GPU's images against the CPU's: another JPEG decoder, and for affine maps
another edge.
"""


load = loading(engine="dali", device=DEVICE, batch_size=8)


SUBSET = 1.0 if DEVICE == "gpu" or IS_FULL else 0.25
"""The part of the faces that is enough where no GPU makes them."""


def psnr(a: torch.Tensor, b: torch.Tensor, peak: float) -> float:
    error = float((a.double() - b.double()).square().mean())
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)


@pytest.mark.parametrize("pipeline", FLOOR_DB)
def test_gpu_and_cpu_make_the_same_images(faces: Path, pipeline: str) -> None:
    with load(faces, pipeline, subset=SUBSET) as loader:
        on_gpu = by_id(loader)
    with load(faces, pipeline, engine="auto", device="cpu", subset=SUBSET) as loader:
        on_cpu = by_id(loader)
    peak = float(max(i.max() for i in on_cpu.values()) - min(i.min() for i in on_cpu.values()))
    found = [psnr(on_gpu[i], on_cpu[i], peak) for i in on_cpu]
    print(f"{pipeline}: least PSNR {min(found):.1f} dB")
    assert on_gpu.keys() == on_cpu.keys()
    assert min(found) >= FLOOR_DB[pipeline]


STEPS: list[Any] = [
    {"resize": {"size": 128}},
    {"resize": {"size": [97, 130]}},
    {"center_crop": {"size": 200}},
    {"center_crop": {"size": 300}},
    {"random_crop": {"size": 200}},
    {"random_crop": {"size": 250, "padding": 4, "fill": 9}},
    {"random_crop": {"size": 250, "padding": 4, "padding_mode": "reflect"}},
    {"random_resized_crop": {"size": 112}},
    "random_horizontal_flip",
    "random_vertical_flip",
    {
        "random_affine": {
            "degrees": 20,
            "translate": [0.1, 0.1],
            "scale": [0.5, 2.0],
            "interpolation": "bilinear",
            "fill": [1, 2, 3],
        }
    },
    {"random_rotation": {"degrees": 20, "interpolation": "bilinear"}},
    {"pad": {"padding": [1, 2, 3, 4], "padding_mode": "edge"}},
    "grayscale",
    {"grayscale": {"num_output_channels": 3}},
    "gaussian_noise",
    "elastic_transform",
]


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_each_step_on_a_gpu(faces: Path, step: Any) -> None:
    with load(faces, ["decode", step], subset=SUBSET) as loader:
        for id, image in by_id(loader).items():
            assert psnr(image, reference(loader, 0, id), 255.0) > 30


@pytest.mark.parametrize(
    "steps",
    [
        ["gaussian_noise"],
        ["elastic_transform"],
        [{"random_apply": {"p": 0.5, "transforms": ["elastic_transform", "gaussian_noise"]}}],
        [FLOATS, {"random_erasing": {"p": 0.5, "value": "random"}}],
    ],
    ids=str,
)
def test_images_of_unequal_size_get_random_numbers_on_a_gpu(faces: Path, steps: list[Any]) -> None:
    pipeline = ["decode", {"random_zoom_out": {"side_range": [1, 1.5], "p": 1}}, *steps]
    with load(faces, pipeline, subset=SUBSET, shapes="list") as loader:
        made = by_id(loader)
        assert len({image.shape for image in made.values()}) > 5
        for id, image in made.items():
            peak = 255.0 if image.dtype == torch.uint8 else 1.0
            assert psnr(image, reference(loader, 0, id), peak) > 30


def test_batches_arrive_on_the_gpu(faces: Path) -> None:
    with load(faces, ["decode", FLOATS]) as loader:
        batch = next(iter(loader))
        assert loader.engine.device == ("gpu:0" if DEVICE == "gpu" else "cpu")
        assert {t.device for t in batch.values()} == {torch.zeros(0, device=TYPE).device}
        assert batch["image"].shape == (8, 3, 250, 250)
        assert (batch["image"].dtype, batch["label"].dtype) == (torch.float32, torch.int64)


def test_law_1_on_a_gpu(faces: Path) -> None:
    """Of the augmentation; what decoders do to it: test_law_1.py."""
    same: dict[str, Any] = {"hw_decoder_load": 0.0, "subset": SUBSET}
    with load(faces, "affine_heavy", **same) as loader:
        expected = by_id(loader)
    for options in (
        {"batch_size": 1},
        {"batch_size": 60, "threads": 1},
        {"batch_size": 7, "prefetch": 5},
    ):
        with load(faces, "affine_heavy", **same, **options) as loader:
            found = by_id(loader)
        assert found.keys() == expected.keys()
        assert min(psnr(found[i], expected[i], 5.0) for i in expected) > 60, options


def test_law_2_on_a_gpu(faces: Path) -> None:
    seen: list[int] = []
    for rank in range(3):
        with load(faces, "affine", shard={"rank": rank, "world_size": 3}) as loader:
            seen += list(by_id(loader))
    assert sorted(seen) == list(range(60))


def test_an_epoch_is_the_same_by_every_road_on_a_gpu(faces: Path) -> None:
    def ids(loader: gpupipe.Loader) -> list[int]:
        return [i for b in loader for i in b["id"].tolist()]

    with load(faces, "affine") as loader:
        epochs = [ids(loader) for _ in range(3)]
        loader.sampler.set_epoch(1)
        iterator = iter(loader)
        first = next(iterator)["id"].tolist()
        state = loader.state_dict()
        loader.load_state_dict(state)
        assert first + ids(loader) == epochs[1]
        assert ids(loader) == epochs[2]


def test_held_batches_stay_what_they_were_on_a_gpu(faces: Path) -> None:
    with load(faces, ["decode", FLOATS], batch_size=4, prefetch=4) as loader:
        held = list(loader)
        sums = [b["image"].double().sum().item() for b in held]
        list(loader)
        assert [b["image"].double().sum().item() for b in held] == sums


@pytest.mark.parametrize(
    ("dtype", "memory_format"), [("float16", "channels_last"), ("bfloat16", "contiguous")]
)
def test_dtype_and_memory_format_on_a_gpu(faces: Path, dtype: str, memory_format: str) -> None:
    with load(faces, ["decode", FLOATS], dtype=dtype, memory_format=memory_format) as loader:
        image = next(iter(loader))["image"]
    assert image.dtype == getattr(torch, dtype)
    assert image.is_contiguous(memory_format=FORMATS[memory_format])
