"""Steps on arrays: equal on both engines, to NumPy, and to torchvision's functional ops."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe.formats.npy import DTYPES
from helpers.arrays import COUNT, SHAPES, both, both_of_each, delivered, exactly, numbers, saved
from helpers.full_product import IS_FULL

CROPS = {"HW": {"size": [6, 5]}, "L": {"size": 16}, "DHW": {"size": [4, 6, 5]}}


PADS = {
    "HW": {"padding": [1, 2, 3, 4], "fill": 1},
    "L": {"padding": [2, 5], "fill": 1},
    "DHW": {"padding": [1, 2, 3, 4, 5, 6], "fill": 1},
}


def choose(
    layouts: Iterable[str], dtypes: Sequence[tuple[str, float]]
) -> list[tuple[str, str, float]]:
    """Every layout with every dtype and its tolerance; in a short run with two, others for each."""
    return [
        (layout, *dtype)
        for row, layout in enumerate(layouts)
        for column, dtype in enumerate(dtypes)
        if IS_FULL or (column - 2 * row) % len(dtypes) < 2
    ]


def space(layout: str) -> str:
    return "".join(axis for axis in layout if axis in "DHWL")


@pytest.mark.parametrize("layout", [layout for layout in SHAPES if space(layout)])
@pytest.mark.parametrize("dtype", ["float32", "bool", "uint64"])
def test_windows_are_the_same_on_both_engines(tmp_path: Path, layout: str, dtype: str) -> None:
    data = saved(tmp_path, numbers(dtype, (COUNT, *SHAPES[layout])), layout=layout)
    crop, pad = CROPS[space(layout)], PADS[space(layout)]
    pipelines: dict[str, list[Any]] = {
        "padded": [{"pad": pad}, {"random_crop": crop}],
        "cut": [{"random_crop": crop | {"padding": pad["padding"], "fill": 1}}],
        "center": [{"center_crop": {"size": 11}}],
    }
    for pairs in both_of_each(data, pipelines).values():
        exactly(pairs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_cut_padded_and_flipped(tmp_path: Path, dtype: str) -> None:
    stored = numbers(dtype, (COUNT, 3, 9, 12))
    steps: list[Any] = [{"pad": {"padding": 2, "fill": [0, 1, 1]}}, {"random_crop": {"size": 7}}]
    steps += [{"random_horizontal_flip": {"p": 1}}, {"random_vertical_flip": {"p": 1}}]
    pairs = both(saved(tmp_path, stored), steps)
    exactly(pairs)
    padded = np.stack(
        [
            np.pad(stored[:, c], ((0, 0), (2, 2), (2, 2)), constant_values=min(c, 1))
            for c in range(3)
        ],
        1,
    )
    for i, (made, _) in enumerate(pairs):
        windows = np.lib.stride_tricks.sliding_window_view(padded[i], (3, 7, 7))[0]
        assert any(np.array_equal(made.numpy(), w[:, ::-1, ::-1]) for row in windows for w in row)


@pytest.mark.parametrize("layout", [layout for layout in SHAPES if "W" in space(layout)])
@pytest.mark.parametrize("dtype", ["float16", "float64", "bool"])
def test_flips_are_along_width_and_height(tmp_path: Path, layout: str, dtype: str) -> None:
    stored = numbers(dtype, (COUNT, *SHAPES[layout]))
    data = saved(tmp_path, stored, layout=layout)
    axes = {"random_horizontal_flip": "W", "random_vertical_flip": "H"}
    always: dict[str, list[Any]] = {f"{step}_always": [{step: {"p": 1}}] for step in axes}
    every = both_of_each(data, always | {step: [step] for step in axes})
    for pairs in every.values():
        exactly(pairs)
    for step, axis in axes.items():
        assert all(
            np.array_equal(made.numpy(), np.flip(stored[i], layout.index(axis)))
            for i, (made, _) in enumerate(every[f"{step}_always"])
        )


@pytest.mark.parametrize(
    ("layout", "dtype", "tolerance"),
    choose(SHAPES, [("float32", 2e-6), ("float16", 2e-3), ("float64", 1e-14)]),
)
def test_normalize_works_on_the_axis_of_channels(
    tmp_path: Path, layout: str, dtype: str, tolerance: float
) -> None:
    stored = numbers(dtype, (COUNT, *SHAPES[layout]))
    channels = SHAPES[layout][layout.index("C")] if "C" in layout else 1
    mean, std = (
        [0.0 if "P" in layout else 0.1 + c / 3 for c in range(channels)],
        [0.5 + c / 7 for c in range(channels)],
    )
    shape = [-1 if axis == "C" else 1 for axis in layout]
    expected = stored.astype(np.float64)
    expected = (
        (expected - np.reshape(mean, shape)) / np.reshape(std, shape)
        if "C" in layout
        else (expected - mean[0]) / std[0]
    )
    pairs = both(
        saved(tmp_path, stored, layout=layout), [{"normalize": {"mean": mean, "std": std}}]
    )
    for i, (made, reference) in enumerate(pairs):
        assert made.dtype == getattr(torch, dtype)
        assert np.abs(made.double().numpy() - expected[i]).max() <= tolerance * 5
        assert (made.double() - reference.double()).abs().max() <= tolerance * 5


def test_normalize_with_one_number_for_all_channels(tmp_path: Path) -> None:
    for dtype in ("float32", "float64"):
        stored = numbers(dtype, (COUNT, 3, 9, 12))
        for made, expected in both(
            saved(tmp_path, stored), [{"normalize": {"mean": 0.25, "std": 0.5}}]
        ):
            torch.testing.assert_close(made, expected, rtol=0, atol=2e-6)


def laid_out(ramps: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """(T, C, H, W) in a layout; of the axes that it has not, the first."""
    first = ramps[tuple(slice(None) if axis in layout else 0 for axis in "TCHW")]
    left = [axis for axis in "TCHW" if axis in layout]
    return first.transpose([left.index(axis) for axis in layout])


@pytest.mark.parametrize(
    ("layout", "dtype", "tolerance"),
    choose(
        ["CHW", "HWC", "HW", "TCHW"],
        [("float32", 1e-5), ("float16", 2e-3), ("uint8", 1), ("int16", 1), ("uint16", 1)],
    ),
)
def test_resizing(tmp_path: Path, layout: str, dtype: str, tolerance: float) -> None:
    """Of a slope: inside, filters agree.

    At the edge, where they look beyond it, DALI repeats the last pixel, and torchvision leaves it
    out.
    """
    slope = (
        np.add.outer(np.linspace(0, 1, 40), np.linspace(0, 1, 56))
        / 2
        * (1 if dtype.startswith("float") else 250)
    )
    sample = laid_out(np.stack([[slope, slope * 0.8, slope * 0.5]] * 2), layout).astype(dtype)
    data = saved(tmp_path, np.stack([sample] * COUNT), layout=layout)
    steps: list[Any] = [
        {"resize": {"size": [20, 24]}},
        {"resize": {"size": 30, "interpolation": "nearest"}},
        {"random_resized_crop": {"size": 16}},
    ]
    inside = tuple(slice(2, -2) if axis in "HW" else slice(None) for axis in layout)
    each = {f"step_{n}": [s] for n, s in enumerate(steps)}
    rounded = 1e-6 if dtype == "float32" else 0
    for pairs in both_of_each(data, each, apart=rounded).values():
        for made, expected in pairs:
            apart = (made.double() - expected.double()).abs()
            assert apart[inside].max() <= tolerance
            assert apart.max() <= 0.02 * float(slope.max()) + tolerance
    if layout == "CHW":
        resized = F.resize(torch.from_numpy(sample), [20, 24]).double()
        assert all(
            (made.double() - resized).abs()[inside].max() <= tolerance
            for made in delivered(data, steps[:1], "dali").values()
        )


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("layout", ["CHW", "HWC", "HW"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_the_cpu_engine_makes_of_arrays_what_torchvision_does(
    tmp_path: Path, layout: str, channels: int, dtype: str
) -> None:
    if layout == "HW" and channels > 1:
        return
    rng = np.random.default_rng(0)
    coarse = rng.random((COUNT, 5, 6, channels)).repeat(8, 1).repeat(8, 2)
    stored = coarse if dtype == "float32" else coarse * 255
    stored = {"CHW": np.moveaxis(stored, -1, 1), "HWC": stored, "HW": stored[..., 0]}[layout]
    data = saved(tmp_path, np.ascontiguousarray(stored.astype(dtype)), layout=layout)
    level = 1 if dtype == "uint8" else 1 / 255
    pipelines: dict[str, list[Any]] = {
        "exact": [
            {"random_crop": {"size": 36, "padding": 2}},
            {"random_horizontal_flip": {"p": 1}},
            {"random_vertical_flip": {"p": 0.5}},
            {"pad": {"padding": 3, "padding_mode": "reflect"}},
        ],
        "resize": [{"random_resized_crop": {"size": 20}}],
        "erasing": [{"random_erasing": {"p": 1}}],
        "warp": [{"random_rotation": {"degrees": 20, "interpolation": "nearest"}}],
    }
    if channels != 2:
        colors: list[Any] = [{"color_jitter": {"brightness": 0.3, "contrast": 0.3}}]
        colors += [{"gaussian_blur": {"kernel_size": 3}}]
        pipelines |= {"colors": colors} if channels != 4 else {}
    for name, steps in pipelines.items():
        own, expected = (delivered(data, steps, engine) for engine in ("cpu", "dataloader"))
        for i, array in own.items():
            assert array.dtype == expected[i].dtype
            apart = (array.double() - expected[i].double()).abs()
            limit = 0 if name in ("exact", "erasing", "warp") else 1.5 * level
            assert apart.max() <= limit, name


@pytest.mark.parametrize("layout", ["CHW", "HWC", "HW"])
def test_warps_of_arrays_that_are_like_images(tmp_path: Path, layout: str) -> None:
    blob = np.exp(
        -(np.add.outer((np.arange(48) - 20.0) ** 2, (np.arange(60) - 33.0) ** 2)) / 150
    ).astype(np.float32)
    stored = np.stack(
        [
            {"CHW": np.stack([blob, 1 - blob]), "HWC": np.stack([blob, 1 - blob], -1), "HW": blob}[
                layout
            ]
        ]
        * COUNT
    )
    data = saved(tmp_path, stored, layout=layout)
    steps: list[Any] = [
        {"random_affine": {"degrees": 30, "scale": [0.8, 1.2], "interpolation": "bilinear"}},
        {"random_rotation": {"degrees": 40}},
    ]
    for step in steps:
        for made, expected in both(data, [step], apart=1e-5):
            assert (made - expected).abs().mean() < 5e-3
            assert not torch.equal(made, torch.from_numpy(stored[0]))
    exactly(
        both(
            data,
            [
                {"pad": {"padding": 3, "padding_mode": "reflect"}},
                {"random_crop": {"size": 52, "pad_if_needed": True, "padding_mode": "edge"}},
            ],
        )
    )
    if layout != "HW":
        three = np.repeat(stored, 2, layout.index("C") + 1)[
            (slice(None),) * (layout.index("C") + 1) + (slice(0, 3),)
        ]
        for made, expected in both(
            saved(tmp_path, three, layout=layout), ["grayscale"], apart=1e-6
        ):
            torch.testing.assert_close(made, expected, rtol=0, atol=1e-6)


def test_windows_are_torchvisions_on_the_same_arrays(tmp_path: Path) -> None:
    stored = numbers("float32", (COUNT, 3, 9, 12))
    for i, made in delivered(
        saved(tmp_path, stored),
        [{"center_crop": {"size": [5, 20]}}, {"pad": {"padding": [1, 2, 3, 4], "fill": 0.5}}],
        "dali",
    ).items():
        assert torch.equal(
            made, F.pad(F.center_crop(torch.from_numpy(stored[i]), [5, 20]), [1, 2, 3, 4], fill=0.5)
        )


def test_a_volume_and_an_image_of_the_same_sample_are_cut_in_the_same_place(tmp_path: Path) -> None:
    """A third draw, for the depth, changes neither of the others."""
    stored = np.broadcast_to(np.arange(20 * 30).reshape(20, 30), (COUNT, 6, 20, 30)).astype(
        np.int32
    )
    volumes = delivered(
        saved(tmp_path, stored, layout="DHW"), [{"random_crop": {"size": [2, 5, 5]}}], "dali"
    )
    images = delivered(saved(tmp_path, stored), [{"random_crop": {"size": 5}}], "dali")
    assert all(torch.equal(volumes[i][0], images[i][0]) for i in range(COUNT))
    depths = np.broadcast_to(np.arange(50).reshape(50, 1, 1), (COUNT, 50, 2, 2)).astype(np.int32)
    fronts = {
        int(v[0, 0, 0])
        for v in delivered(
            saved(tmp_path, depths, layout="DHW"), [{"random_crop": {"size": [1, 2, 2]}}], "dali"
        ).values()
    }
    assert len(fronts) > 1
