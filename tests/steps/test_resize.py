from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from PIL import Image
from torchvision.transforms.v2 import RandomResizedCrop as Torchvision
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe.pipeline.step import Params, Spec
from gpupipe.steps.resize import RandomResizedCrop, Resize
from helpers.reference import Difference, differences, emitted, load


def inner(d: Difference) -> torch.Tensor:
    """The levels without the outermost 4 pixels: DALI repeats the edge under its filter,
    torchvision shortens the filter.
    """
    return d.levels[:, 4:-4, 4:-4]


@pytest.mark.parametrize(
    "parameters",
    [
        {"size": 128},
        {"size": 127},
        {"size": [224, 224]},
        {"size": [97, 301]},
        {"size": 700},
        {"size": 200, "max_size": 256},
        {"size": None, "max_size": 200},
    ],
    ids=str,
)
def test_antialiased_resize_is_torchvision_s_but_for_the_edge(
    gallery: Path, parameters: dict[str, Any]
) -> None:
    found = differences(gallery, {"resize": parameters})
    assert max(d.mean for d in found) < 0.3
    assert max(float(inner(d).max()) for d in found) <= 1
    assert max(abs(d.offset) for d in found) < 0.2


def test_bicubic_has_no_shift(gallery: Path) -> None:
    """torchvision rounds and clips between the two directions, DALI does not: at hard edges they
    differ by some levels.
    """
    found = differences(gallery, {"resize": {"size": 128, "interpolation": "bicubic"}})
    assert max(d.mean for d in found) < 0.3
    assert max(abs(d.offset) for d in found) < 0.2
    assert max(float((inner(d) > 1).double().mean()) for d in found) < 0.002


def test_bilinear_without_antialias_is_within_a_level(gallery: Path) -> None:
    assert (
        max(d.most for d in differences(gallery, {"resize": {"size": 128, "antialias": False}}))
        <= 1
    )


def test_nearest_takes_the_same_pixels(gallery: Path) -> None:
    """floor(x * scale) lands on the other pixel only where float32 and float64 disagree about a
    whole number.
    """
    found = differences(gallery, {"resize": {"size": 131, "interpolation": "nearest"}})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.01


def test_shape_is_known_where_the_input_s_is() -> None:
    known = Spec.of_image(3, 375, 500)
    assert Resize.model_validate({"size": 256}).infer_spec(known).size == (256, 341)
    assert Resize.model_validate({"size": [10, 20]}).infer_spec(Spec.of_image(None)).size == (
        10,
        20,
    )
    assert Resize.model_validate({"size": 256}).infer_spec(Spec.of_image(None)).at_least == (
        256,
        256,
    )
    assert Resize.model_validate({"size": 256, "max_size": 300}).infer_spec(known).size == (
        225,
        300,
    )


def test_null_sets_the_longer_side_as_torchvision_does() -> None:
    step = Resize.model_validate({"size": None, "max_size": 100})
    for height, width in ((75, 300), (300, 75), (20, 50), (100, 100), (301, 299)):
        image = torch.zeros(3, height, width, dtype=torch.uint8)
        theirs = F.resize(image, None, max_size=100).shape
        assert step.torch(image, {}).shape == theirs
        known = Spec.of_image(None).with_size((height, width))
        assert step.infer_spec(known).size == tuple(theirs[1:])


@pytest.mark.parametrize("engine", ["cpu", "dali", "dataloader"])
@pytest.mark.parametrize("size", [8, None])
def test_no_side_of_a_long_image_becomes_0(tmp_path: Path, engine: str, size: int | None) -> None:
    """torchvision refuses such an image, and the epoch ended with it."""
    (tmp_path / "a").mkdir()
    Image.new("RGB", (1000, 2), (9, 9, 9)).save(tmp_path / "a/0.png")
    config = {
        "data": {"source": "folder", "root": str(tmp_path)},
        "pipeline": ["decode", {"resize": {"size": size, "max_size": 100}}],
        "loader": {"engine": engine, "device": "cpu", "workers": 0, "batch_size": 1},
    }
    with gpupipe.load(config) as loader:
        (batch,) = loader
    assert batch["image"].shape == (1, 3, 1, 100)
    assert (batch["image"] == 9).all()


@pytest.mark.parametrize(
    "parameters",
    [
        {"size": None},
        {"size": [1, 2], "max_size": 3},
        {"size": 10, "max_size": 10},
        {"size": 9, "interpolation": "bicubic", "antialias": False},
    ],
)
def test_what_cannot_be_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        Resize.model_validate(parameters)


@pytest.mark.parametrize(
    "parameters",
    [
        {"size": 112},
        {"size": [90, 150], "scale": [0.5, 1.0]},
        {"size": 112, "ratio": [3, 4], "scale": [0.9, 1.0]},
        {"size": 112, "ratio": [0.2, 0.25], "scale": [0.9, 1.0]},
    ],
    ids=str,
)
def test_pixels(gallery: Path, parameters: dict[str, Any]) -> None:
    found = differences(gallery, {"random_resized_crop": parameters}, epochs=range(2))
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < 0.2
    assert max(float(d.levels[:, 8:-8, 8:-8].max()) for d in found) <= 1


def test_bicubic_has_no_shift_of_resized_crop(gallery: Path) -> None:
    found = differences(gallery, {"random_resized_crop": {"size": 112, "interpolation": "bicubic"}})
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < 0.2


def test_only_the_window_is_decoded(gallery: Path) -> None:
    with load(gallery, {"random_resized_crop": {"size": 112}}) as loader:
        assert emitted(loader) == ["decoders.image_slice", "resize", "transpose"]


def by_the_book(
    step: RandomResizedCrop, p: Params, height: int, width: int
) -> tuple[list[int], bool]:
    """torchvision's loop (v2 RandomResizedCrop.make_params), fed with the step's own tries: (top,
    left, height, width), and whether one fitted.
    """
    area = height * width
    for factor_h, factor_w in p["factors"]:
        w, h = round(area**0.5 * factor_w), round(area**0.5 * factor_h)
        if 0 < w <= width and 0 < h <= height:
            top, left = (
                int(u * (room + 1))
                for u, room in zip(p["position"], (height - h, width - w), strict=True)
            )
            return [top, left, h, w], True
    in_ratio = width / height
    if in_ratio < step.ratio[0]:
        w, h = width, round(width / step.ratio[0])
    elif in_ratio > step.ratio[1]:
        w, h = round(height * step.ratio[1]), height
    else:
        w, h = width, height
    return [(height - h) // 2, (width - w) // 2, h, w], False


@pytest.mark.parametrize(
    ("height", "width"), [(375, 500), (500, 333), (30, 900), (901, 31), (64, 64), (1, 1), (2, 3)]
)
@pytest.mark.parametrize(
    "parameters",
    [{}, {"scale": [0.9, 1.0], "ratio": [0.5, 2.0]}, {"ratio": [3.0, 4.0], "scale": [0.8, 1.0]}],
    ids=str,
)
def test_ten_tries_then_the_fallback(height: int, width: int, parameters: dict[str, Any]) -> None:
    step = RandomResizedCrop.model_validate({"size": 10, **parameters})
    p = step.sample(np.random.default_rng(height * width).random((300, step.num_uniforms)))
    fallbacks = 0
    for i in range(300):
        row = {name: values[i] for name, values in p.items()}
        expected, fitted = by_the_book(step, row, height, width)
        anchor, shape = step.window(row, np.array([height, width], np.float64))
        assert [*anchor, *shape] == expected
        fallbacks += not fitted
    if min(height, width) * 10 < max(height, width):
        assert fallbacks > 100


@pytest.mark.parametrize("ratio", [(3 / 4, 4 / 3), (3.0, 4.0)])
def test_a_batch_has_the_windows_of_its_samples(ratio: tuple[float, float]) -> None:
    """Also a batch in which all ten windows of some samples are too large."""
    step = RandomResizedCrop(size=(9, 9), scale=(0.5, 1.0), ratio=ratio)
    rng = np.random.default_rng(0)
    p, size = step.sample(rng.random((200, step.num_uniforms))), rng.integers(1, 600, (200, 2))
    anchors, shapes = step.window(p, size.astype(np.float64))
    for n, (anchor, shape) in enumerate(zip(anchors, shapes, strict=True)):
        own = step.window({name: v[n] for name, v in p.items()}, size[n].astype(np.float64))
        assert np.array_equal([anchor, shape], own)


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio", "shape"),
    [(5, 60, 1.0, 2.5, [5, 12]), (15, 2, 1.0, 0.4, [5, 2]), (5, 5, 0.25, 1.0, [2, 2])],
)
def test_halves_are_rounded_to_even(
    height: int, width: int, scale: float, ratio: float, shape: list[int]
) -> None:
    """As Python's round() in torchvision does: in the fallback, and where nothing is drawn."""
    step = RandomResizedCrop(size=(9, 9), scale=(scale, scale), ratio=(ratio, ratio))
    p = step.sample(np.full((1, step.num_uniforms), 0.5))
    row = {name: values[0] for name, values in p.items()}
    assert step.window(row, np.array([height, width], np.float64))[1].tolist() == shape
    assert by_the_book(step, row, height, width)[0][2:] == shape


def test_distribution_is_torchvision_s() -> None:
    """Means of 4,000 windows of each, within four standard errors."""
    step = RandomResizedCrop.model_validate({"size": 10})
    p = step.sample(np.random.default_rng(0).random((4000, step.num_uniforms)))
    ours = np.array(
        [
            np.concatenate(step.window({n: v[i] for n, v in p.items()}, np.array([375.0, 500.0])))
            for i in range(4000)
        ]
    )
    torch.manual_seed(0)
    transform = Torchvision(10, antialias=True)
    image = torch.zeros(3, 375, 500)
    theirs = np.array(
        [
            [q[k] for k in ("top", "left", "height", "width")]
            for q in (transform.make_params([image]) for _ in range(4000))
        ]
    )
    error = np.sqrt((ours.var(0) + theirs.var(0)) / 4000)
    assert (np.abs(ours.mean(0) - theirs.mean(0)) < 4 * error).all()
