from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import RandomResize as Torchvision
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_resize import RandomResize
from helpers.arrays import ENGINES
from helpers.color_differences import as_gray
from helpers.distributions import MOST, chi_square
from helpers.pipeline_texts import mistakes
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize(("mode", "most"), [("rgb", 1), ("gray", 1)])
def test_pixels_are_torchvisions_but_for_the_edge(gallery: Path, mode: str, most: int) -> None:
    parameters = {"random_resize": {"min_size": 100, "max_size": 300}}
    root = as_gray(gallery) if mode == "gray" else gallery
    found = differences(root, parameters, decode={"mode": mode})
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < 0.2
    assert max(float(d.levels[:, 6:-6, 6:-6].max()) for d in found) <= most
    assert len({d.image.shape for d in found}) == len(found)


@pytest.mark.parametrize(
    ("parameters", "most"),
    [({"interpolation": "nearest"}, 0), ({"antialias": False}, 1)],
    ids=str,
)
def test_other_interpolations(gallery: Path, parameters: dict[str, Any], most: int) -> None:
    """Nearest pixels differ only where float32 and float64 disagree about a whole number.

    That may be two of about a hundred rows and columns.
    """
    sizes = {"min_size": 100, "max_size": 300}
    found = differences(gallery, {"random_resize": sizes | parameters})
    assert max(float((d.levels > most).double().mean()) for d in found) < 0.02


def test_floats(gallery: Path) -> None:
    steps = [
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"random_resize": {"min_size": 100, "max_size": 300}},
    ]
    found = differences(gallery, *steps)
    assert max(255 * float(d.levels[:, 6:-6, 6:-6].max()) for d in found) < 0.1


def test_sizes_are_those_of_torchvisions_resize() -> None:
    step = RandomResize(min_size=3, max_size=90)
    p = step.sample(np.random.default_rng(0).random((60, 1)))
    for size in [(375, 500), (500, 333), (1, 1), (7, 5), (31, 49)]:
        shapes = step.shape(p, np.array(size, np.float64))
        for short, shape in zip(p["short"], shapes, strict=True):
            expected = F.resize(torch.zeros(1, *size), [int(short)]).shape[1:]
            assert shape.tolist() == list(expected)


def test_all_sizes_but_the_last_are_equally_probable() -> None:
    """torchvision draws with randint(min_size, max_size), which leaves out max_size."""
    step = RandomResize(min_size=10, max_size=17)
    drawn = step.sample(np.random.default_rng(0).random((20_000, 1)))["short"]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(range(10, 17))
    assert chi_square(counts) < MOST
    transform, image = Torchvision(10, 17), torch.zeros(3, 5, 5)
    theirs = {transform.make_params([image])["size"][0] for _ in range(500)}
    assert theirs == set(range(10, 17))


def test_the_least_size_is_known_to_later_steps(gallery: Path) -> None:
    spec = Spec.of_image(3, 40, 50)
    made = RandomResize(min_size=20, max_size=30).infer_spec(spec)
    assert (made.size, made.at_least) == (None, (20, 20))
    steps = [{"random_resize": {"min_size": 200, "max_size": 300}}, {"random_crop": {"size": 200}}]
    with load(gallery, *steps) as loader:
        assert emitted(loader)[-2:] == ["resize", "transpose"], "one operator for both"


def test_a_step_must_make_sizes_equal(faces: Path) -> None:
    resize = {"random_resize": {"min_size": 40, "max_size": 60}}
    for options in ENGINES.values():
        with (
            load(faces, resize, batch_size=8, device="cpu", **options) as loader,
            pytest.raises(gpupipe.ShapeError, match=r"differ in size .*: .*resize with size"),
        ):
            list(loader)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{min_size: 20, max_size: 10}",
            "2:18: random_resize: max_size is 10, but must be larger than min_size, 20: sizes are "
            "drawn from min_size to max_size - 1",
        ),
        (
            "{min_size: 20, max_size: 20}",
            "2:18: random_resize: max_size is 20, but must be larger than min_size, 20: sizes are "
            "drawn from min_size to max_size - 1",
        ),
        (
            "{min_size: 20}",
            "2:3: random_resize.max_size: missing; write 'max_size: ...' (the length of the "
            "shorter side is less than this, in pixels)",
        ),
        (
            "{min_size: 0, max_size: 5}",
            "2:29: random_resize.min_size is 0, but should be at least 1",
        ),
        (
            "{min_size: 2, max_size: 5, interpolation: bicubic, antialias: false}",
            "2:18: random_resize: bicubic without antialias differs between engines: set "
            "antialias: true, or take bilinear",
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert mistakes("decode", f"random_resize: {text}") == [message]
