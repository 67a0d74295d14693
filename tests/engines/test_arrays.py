"""Arrays on both engines: equal to each other, to NumPy, and to torchvision's functional ops on the
same arrays.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arrays import ENGINES, both, delivered, numbers, saved
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe.formats.npy import DTYPES

COUNT = 5
ULP = 2.0**-10
"""Between two float16s: DALI and torch differ on what lies half-way between them."""
SHAPES = {
    "CHW": (3, 9, 12),
    "HWC": (9, 12, 3),
    "HW": (9, 12),
    "LC": (40, 3),
    "CL": (3, 40),
    "L": (40,),
    "CDHW": (2, 7, 9, 8),
    "DHWC": (7, 9, 8, 2),
    "TCHW": (2, 3, 9, 12),
}
SHAPES |= {"C": (6,), "CHWP": (3, 9, 12, 2)}


def exactly(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for made, expected in pairs:
        assert torch.equal(made, expected), (made.double() - expected.double()).abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_without_steps_are_those_of_the_file(tmp_path: Path, dtype: str) -> None:
    stored = numbers(dtype, (COUNT, 3, 4, 5))
    for engine in ENGINES:
        found = delivered(saved(tmp_path, stored), [], engine)
        assert {t.dtype for t in found.values()} == {getattr(torch, dtype)}
        assert all(np.array_equal(found[i].numpy(), stored[i]) for i in range(COUNT))


@pytest.mark.parametrize("shape", [(), (2, 3, 2, 3, 2, 3)], ids=str)
def test_arrays_of_no_axis_and_of_many_go_through(tmp_path: Path, shape: tuple[int, ...]) -> None:
    stored = numbers("float32", (COUNT, *shape))
    for engine in ENGINES:
        found = delivered(saved(tmp_path, stored), [{"to_dtype": {"dtype": "float64"}}], engine)
        assert all(
            np.array_equal(found[i].numpy(), stored[i].astype(np.float64)) for i in range(COUNT)
        )


CROPS = {"HW": {"size": [6, 5]}, "L": {"size": 16}, "DHW": {"size": [4, 6, 5]}}
PADS = {
    "HW": {"padding": [1, 2, 3, 4], "fill": 1},
    "L": {"padding": [2, 5], "fill": 1},
    "DHW": {"padding": [1, 2, 3, 4, 5, 6], "fill": 1},
}


def space(layout: str) -> str:
    return "".join(axis for axis in layout if axis in "DHWL")


@pytest.mark.parametrize("layout", [layout for layout in SHAPES if space(layout)])
@pytest.mark.parametrize("dtype", ["float32", "bool", "uint64"])
def test_windows_are_the_same_on_both_engines(tmp_path: Path, layout: str, dtype: str) -> None:
    data = saved(tmp_path, numbers(dtype, (COUNT, *SHAPES[layout])), layout=layout)
    crop, pad = CROPS[space(layout)], PADS[space(layout)]
    exactly(both(data, [{"pad": pad}, {"random_crop": crop}]))
    exactly(both(data, [{"random_crop": crop | {"padding": pad["padding"], "fill": 1}}]))
    exactly(both(data, [{"center_crop": {"size": 11}}]))


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
    for step, axis in (("random_horizontal_flip", "W"), ("random_vertical_flip", "H")):
        pairs = both(data, [{step: {"p": 1}}])
        exactly(pairs)
        assert all(
            np.array_equal(made.numpy(), np.flip(stored[i], layout.index(axis)))
            for i, (made, _) in enumerate(pairs)
        )
        exactly(both(data, [step]))


@pytest.mark.parametrize("layout", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 2e-6), ("float16", 2e-3), ("float64", 1e-14)]
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


IN_HALVES = ["uint8", "int8", "int16"]
SCALED = [
    (given, made)
    for given in ("uint8", "int8", "uint16", "int16", "int32", "int64")
    for made in DTYPES
    if made not in ("bool", "uint32", "uint64")
]
SCALED = [(given, made) for given, made in SCALED if made != "float16" or given in IN_HALVES]
SCALED += [
    ("float32", made) for made in ("uint8", "int8", "uint16", "int16", "float16", "float64")
] + [
    ("float64", "int32"),
    ("float64", "uint8"),
    ("float16", "float32"),
]


@pytest.mark.parametrize(("given", "made"), SCALED, ids=str)
def test_to_dtype_scales_as_torchvision_does(tmp_path: Path, given: str, made: str) -> None:
    """Negative numbers have no place in an unsigned dtype, and 1.0 none in uint16: torchvision
    wraps those around, here they become 0 and 65535.
    """
    stored = (
        np.random.default_rng(0).random((COUNT, 2, 30)).astype(given)
        if given.startswith("float")
        else numbers(given, (COUNT, 2, 30))
    )
    if made.startswith("u") and np.dtype(given).kind == "i":
        stored = np.abs(np.maximum(stored, -np.iinfo(given).max))
    for i, (found, same) in enumerate(
        both(saved(tmp_path, stored, layout="CL"), [{"to_dtype": {"dtype": made, "scale": True}}])
    ):
        expected = F.to_dtype(torch.from_numpy(stored[i]), getattr(torch, made), scale=True)
        assert torch.equal(same, expected)
        torch.testing.assert_close(found, expected, rtol=ULP * (made == "float16"), atol=0)


@pytest.mark.parametrize("given", DTYPES)
@pytest.mark.parametrize("made", DTYPES)
def test_to_dtype_takes_the_nearest_number_that_there_is(
    tmp_path: Path, given: str, made: str
) -> None:
    stored = numbers(given, (COUNT, 300))
    if given.startswith("float"):
        stored[:, :9] = np.array([0.0, -0.0, 0.3, -0.7, 1e4, -1e4, np.inf, -np.inf, np.nan], given)
        stored[:, 9:40] *= 300
    pairs = both(saved(tmp_path, stored), [{"to_dtype": {"dtype": made}}])
    for i, (found, expected) in enumerate(pairs):
        torch.testing.assert_close(
            found, expected, rtol=ULP * (made == "float16"), atol=0, equal_nan=True
        )
        if np.dtype(made).kind in "iu" and np.dtype(given).kind in "iuf":
            bounds = np.iinfo(made)
            exact = [
                bounds.min
                if n <= bounds.min
                else bounds.max
                if n >= bounds.max
                else 0
                if math.isnan(n)
                else int(n)
                for n in stored[i].tolist()
            ]
            assert found.tolist() == exact


def test_what_the_loader_delivers_has_its_dtype(tmp_path: Path) -> None:
    stored = numbers("float64", (COUNT, 4))
    for dtype in ("float16", "bfloat16", "float32"):
        for engine in ENGINES:
            found = delivered(saved(tmp_path, stored), [], engine, dtype=dtype)
            assert all(
                torch.equal(found[i], torch.from_numpy(stored[i]).float().to(getattr(torch, dtype)))
                for i in range(COUNT)
            )


def laid_out(ramps: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """(T, C, H, W) in a layout; of the axes that it has not, the first."""
    first = ramps[tuple(slice(None) if axis in layout else 0 for axis in "TCHW")]
    left = [axis for axis in "TCHW" if axis in layout]
    return first.transpose([left.index(axis) for axis in layout])


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 1e-5), ("float16", 2e-3), ("uint8", 1), ("int16", 1), ("uint16", 1)],
)
@pytest.mark.parametrize("layout", ["CHW", "HWC", "HW", "TCHW"])
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
    for step in steps:
        for made, expected in both(data, [step]):
            apart = (made.double() - expected.double()).abs()
            assert apart[inside].max() <= tolerance
            assert apart.max() <= 0.02 * float(slope.max()) + tolerance
    if layout == "CHW":
        resized = F.resize(torch.from_numpy(sample), [20, 24]).double()
        assert all(
            (made.double() - resized).abs()[inside].max() <= tolerance
            for made in delivered(data, steps[:1], "dali").values()
        )


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
        for made, expected in both(data, [step]):
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
        for made, expected in both(saved(tmp_path, three, layout=layout), ["grayscale"]):
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


def test_arrays_of_different_shapes(tmp_path: Path) -> None:
    for i in range(COUNT):
        np.save(tmp_path / f"{i}.npy", numbers("float32", (2, 9 + i, 14 - i), i))
    data = {"source": "numpy", "files": str(tmp_path / "*.npy")}
    exactly(
        both(data, [{"random_crop": {"size": 12, "pad_if_needed": True}}, "random_horizontal_flip"])
    )
    with pytest.raises(
        gpupipe.ShapeError,
        match=r"'array' of a batch differ in shape: .*\d\.npy is 2x.*, .*\d\.npy is 2x",
    ):
        delivered(data, [], "dali")
    with pytest.raises(
        gpupipe.SampleError,
        match=r"\d\.npy: the window of 12x12 pixels at .* is not inside the image, which has "
        r"\d+x\d+;",
    ):
        delivered(
            data, [{"random_crop": {"size": 12}}], "dali", shuffle=False, batch_size=1, seed=1
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_batches_that_are_held_keep_their_numbers(tmp_path: Path, engine: str) -> None:
    """Nothing is copied on the way into DALI: what comes out must not be what the next batches are
    made in.
    """
    stored = numbers("float32", (64, 3, 32, 32))
    data = saved(tmp_path, stored)
    for steps in ([], [{"center_crop": {"size": 32}}]):
        with gpupipe.load(
            {"data": data, "pipeline": steps},
            device="cpu",
            batch_size=4,
            ids=True,
            prefetch=8,
            **ENGINES[engine],
        ) as loader:
            held = [batch for _ in range(3) for batch in loader]
        assert len(held) == 48
        assert all(
            np.array_equal(batch["array"].numpy(), stored[batch["id"].numpy()]) for batch in held
        )


def test_a_file_that_is_cut_off_after_it_was_indexed_is_skipped_and_named(tmp_path: Path) -> None:
    for i in range(COUNT):
        np.save(tmp_path / f"{i}.npy", numbers("float32", (2, 300), i))
    data = {"source": "numpy", "files": str(tmp_path / "*.npy")}
    for engine, options in ENGINES.items():
        with gpupipe.load(
            {"data": data, "pipeline": []},
            device="cpu",
            batch_size=2,
            ids=True,
            on_error="skip",
            max_bad=0.5,
            **options,
        ) as loader:
            (tmp_path / "3.npy").write_bytes((tmp_path / "3.npy").read_bytes()[:-100])
            found = sorted(int(i) for batch in loader for i in batch["id"])
            assert found == [0, 1, 2, 4], engine
            assert (
                "3.npy ends 100 bytes before the sample does"
                in Path(loader.engine.quarantine_file).read_text()
            )
        np.save(tmp_path / "3.npy", numbers("float32", (2, 300), 3))


def test_an_image_file_takes_other_dtypes_too(tmp_path: Path) -> None:
    """As a mask does that becomes int64 for the loss."""
    from PIL import Image

    (tmp_path / "a").mkdir()
    pixels = numbers("uint8", (9, 12, 3))
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    data = {"source": "folder", "root": str(tmp_path), "field": "image"}
    steps: list[Any] = [
        "decode",
        {"to_dtype": {"dtype": "int64"}},
        {"center_crop": {"size": [5, 6]}},
    ]
    for engine, options in ENGINES.items():
        for layout in ("contiguous", "channels_last"):
            config = {"data": {k: v for k, v in data.items() if k != "field"}, "pipeline": steps}
            with gpupipe.load(config, device="cpu", memory_format=layout, **options) as loader:
                (batch,) = loader
            assert batch["image"].dtype == torch.int64, engine
            assert np.array_equal(batch["image"][0].numpy(), pixels[2:7, 3:9].transpose(2, 0, 1))
