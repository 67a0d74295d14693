"""The CPU engine as a whole: its pixels, what runs where, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers import forked_python
from helpers.every_step import FEW_PIXELS, LINEAR, POLICIES, STEPS
from helpers.loaders import loading
from helpers.python_end import END
from helpers.reference import by_id

load = loading(engine="cpu", threads=2, batch_size=1)
REFERENCE: dict[str, Any] = {"engine": "dataloader", "workers": 0}
CASES = [
    {name: options}
    for name, every in STEPS.items()
    for options in every
    if name not in ("decode", "dali", "to_dtype", "normalize", "aug_mix")
]
FLOATS: list[Any] = [
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]
FLIPS = ["random_horizontal_flip", "random_vertical_flip"]
EXACT = [
    [{"random_resized_crop": {"size": 64}}, "random_horizontal_flip", *FLOATS],
    [{"resize": {"size": 64}}, {"center_crop": {"size": 60}}, *FLOATS],
    [{"resize": {"size": [50, 70], "interpolation": "bicubic"}}],
    [{"resize": {"size": [50, 70], "antialias": False}}, "random_horizontal_flip", *FLOATS],
    [{"resize": {"size": [50, 70]}}, {"center_crop": {"size": [60, 40]}}, *FLIPS, *FLOATS],
    [
        {"resize": {"size": [50, 70]}},
        {"center_crop": {"size": [60, 40]}},
        *FLIPS,
        {"random_invert": {"p": 1}},
    ],
    [{"random_crop": {"size": 200, "padding": 30, "fill": 9}}, "random_vertical_flip"],
]
"""Steps after which every pixel is torchvision's."""


def most(root: Path, steps: list[Any], **options: Any) -> float:
    """The largest difference to the reference over a few images of their own sizes."""
    with load(root, ["decode", *steps], **options) as loader:
        found = by_id(loader)
    with load(root, ["decode", *steps], **REFERENCE) as loader:
        expected = by_id(loader)
    assert found.keys() == expected.keys()
    for id, image in found.items():
        assert (image.dtype, image.shape) == (expected[id].dtype, expected[id].shape)
    return max(float((found[i].double() - expected[i].double()).abs().max()) for i in found)


@pytest.mark.parametrize("steps", EXACT, ids=str)
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_pixels_are_those_of_torchvision(
    few_photos: Path, steps: list[Any], memory_format: str
) -> None:
    assert most(few_photos, steps, memory_format=memory_format) == 0.0


@pytest.mark.parametrize("fill", [0, 100, [10, 20, 30]], ids=str)
@pytest.mark.parametrize("name", ["random_affine", "random_perspective"])
def test_a_warp_is_within_one_level_and_so_is_its_border(
    small_faces: Path, name: str, fill: Any
) -> None:
    options = {
        "random_affine": {"degrees": 30, "translate": [0.2, 0.2], "scale": [0.5, 2.0]},
        "random_perspective": {"p": 1, "distortion_scale": 0.5},
    }[name]
    step = {name: {**options, "fill": fill, "interpolation": "bilinear"}}
    assert 0 < most(small_faces, [step]) <= 1.0
    assert most(small_faces, [step, FLOATS[0]]) <= 1.001 / 255


WARPS = ("random_affine", "random_rotation", "random_perspective")


def is_ambiguous(case: dict[str, Any]) -> bool:
    """Whether pixels half-way between two may be either."""
    ((name, options),) = case.items()
    return name in WARPS and (options or {}).get("interpolation", "nearest") == "nearest"


@pytest.mark.parametrize("case", [c for c in CASES if c.keys() & POLICIES.keys()], ids=str)
def test_every_policy_is_within_one_level(few: Path, case: dict[str, Any]) -> None:
    assert most(few, [{"center_crop": {"size": 80}}, case]) <= 1.0


def test_every_step_is_within_one_level(few: Path) -> None:
    """Each is a view of one loader."""
    views = {}
    for number, case in enumerate(CASES):
        ((step, options),) = case.items()
        if step in POLICIES or is_ambiguous(case):
            continue
        crop = {"center_crop": {"size": list(FEW_PIXELS) if case == LINEAR else 80}}
        before = FLOATS if (options or {}).get("value") == "random" else []  # uint8 is refused
        views[f"case_{number}"] = {"steps": [crop, *before, case]}
    written = {
        "data": {"source": "folder", "root": few},
        "pipeline": {"steps": ["decode"], "views": views},
    }
    settings = {"device": "cpu", "batch_size": 1, "shuffle": False}
    with (
        gpupipe.load(written, engine="cpu", threads=2, **settings) as loader,
        gpupipe.load(written, **REFERENCE, **settings) as other,
    ):
        for found, expected in zip(loader, other, strict=True):
            for name, view in views.items():
                made, reference = found[name], expected[name]
                assert (made.dtype, made.shape) == (reference.dtype, reference.shape), view
                assert (made.double() - reference.double()).abs().max() <= 1.0, view


def test_aug_mix_agrees_on_average(few: Path) -> None:
    """Its operations follow one another, and equalize spreads a level of a warp."""
    steps = ["decode", "aug_mix"]
    with load(few, steps) as loader, load(few, steps, **REFERENCE) as other:
        found, expected = by_id(loader), by_id(other)
    assert all((found[i].float() - expected[i].float()).abs().mean() < 0.2 for i in expected)


def test_torch_keeps_its_threads_in_other_threads(few: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with load(few, ["decode"], batch_size=1) as loader:
            next(iter(loader))
            assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


SCRIPT = """
import sys
import gpupipe
config = {"data": {"source": "folder", "root": sys.argv[1]}, "pipeline": ["decode"]}
loader = gpupipe.load(config, engine="cpu", device="cpu", batch_size=1, threads=2)
print(next(iter(loader))["image"].dtype)
"""


def test_a_process_ends_with_an_open_iteration(few: Path) -> None:
    done = forked_python.run(["-c", SCRIPT + END, few])
    assert (done.returncode, done.stdout, done.stderr) == (0, "torch.uint8\n", "")


def test_a_state_resumes_to_the_bit(faces: Path) -> None:
    steps = ["decode", {"random_resized_crop": {"size": 40}}, "random_horizontal_flip", *FLOATS]
    with load(faces, steps, batch_size=7) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = loader.state_dict()
        expected = [batch["image"] for batch in iterator]
    with load(faces, steps, batch_size=7, threads=3, prefetch=5) as loader:
        loader.load_state_dict(state)
        found = [batch["image"] for batch in loader]
    assert len(found) == len(expected) > 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
