"""Every step on every dtype: it runs on every engine, or none begins.

Data are images, and arrays of two layouts. Each pair of a step and a dtype gets one of the three:
so each step meets each dtype and each kind of data. With GPUPIPE_TEST_ALL=1 (`make test-all`) it
gets all three.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe import config
from gpupipe.dataset.index import build_empty
from gpupipe.engines.base import LoadSpec
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.primitives import DTYPES_TAKEN
from helpers.arrays import ENGINES, numbers, saved
from helpers.every_step import CASES, COLORS, LINEAR, POLICIES, SIZE, STEPS, of_image, photograph

ULP = 2.0**-10
"""Between two float16s."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return photograph(tmp_path_factory.mktemp("photograph"))


def outcome(
    data: dict[str, Any], steps: list[Any], engine: str, **options: Any
) -> torch.Tensor | str:
    """What an engine delivers, or how the config is refused; anything else is raised."""
    written = {"data": data, "pipeline": steps}
    try:
        opened = gpupipe.load(
            written, device="cpu", batch_size=1, threads=1, **ENGINES[engine], **options
        )
    except gpupipe.ConfigError as e:
        return str(e)
    with opened as loader:
        return next(iter(loader))[loader.config.pipeline.main][0]


def tensor(found: torch.Tensor | str) -> torch.Tensor:
    assert isinstance(found, torch.Tensor), found
    return found


def agree(made: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """To the bit, but for pixels that are made between others, which agree in the mean; colours, to
    a level; and floats, as they are rounded.
    """
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    wide = made.double(), expected.double()
    if step_registry.find(name).interpolates is True:  # containers say it of what they hold
        assert (wide[0] - wide[1]).abs().mean() <= 0.05 * wide[1].abs().max()
    elif name in ("normalize", "grayscale", *COLORS) or made.dtype == torch.float16:
        tolerance = {torch.uint8: 1.0, torch.float16: ULP}.get(made.dtype, 1e-6)
        torch.testing.assert_close(*wide, rtol=0 if tolerance == 1.0 else tolerance, atol=tolerance)
    else:
        assert torch.equal(made, expected)


KINDS = ("image", "CHW", "HW")


def iter_cases(kind: str, dtype: str) -> Iterator[dict[str, Any]]:
    """The steps to try. to_dtype on arrays: tests/engines/test_arrays.py."""
    for number, case in enumerate(CASES):
        turn = KINDS[(number + DTYPES.index(dtype)) % len(KINDS)]
        is_tried = kind == turn or os.environ.get("GPUPIPE_TEST_ALL") == "1"
        if is_tried and (kind == "image" or "to_dtype" not in case):
            yield case


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_step_runs_on_both_engines_or_is_refused(
    image: dict[str, Any], tmp_path: Path, dtype: str, kind: str
) -> None:
    shape = {"CHW": (3, *SIZE), "HW": SIZE}
    for case in iter_cases(kind, dtype):
        (name,) = case
        before = of_image(dtype, case=case) if kind == "image" else []
        data = image
        if kind != "image":
            array = numbers(dtype, (1, *shape[kind]))
            is_color = name in COLORS and array.dtype.kind == "f"
            data = saved(tmp_path, np.abs(array) / 2 if is_color else array, layout=kind)
        *others, expected = (outcome(data, [*before, case], engine) for engine in ENGINES)
        if isinstance(expected, str):
            assert all(made == expected for made in others)
            assert re.match(
                rf"config: pipeline\.{len(before)}: {name} cannot stand here: .*: "
                r"(write|leave it out|set|take) ?",
                expected,
            ), expected
        else:
            for made in others:
                agree(tensor(made), expected, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_graphs_for_a_gpu_are_built_of_operators_that_take_it(dtype: str) -> None:
    """As nodes: no GPU is needed for that. linear_transformation is refused there."""
    for case in (case for case in CASES if case != LINEAR):
        written = {
            "data": {"source": "folder", "root": "/nowhere"},
            "pipeline": [*of_image(dtype, case=case), case],
        }
        try:
            checked = config.read(written)
        except gpupipe.ConfigError:
            continue
        emitted = Lowering(
            LoadSpec(build_empty(), checked.pipeline, checked.loader, 1), "gpu", False
        ).operators()
        assert emitted[0].device == "mixed"
        assert {e.device for e in emitted[1:]} <= {"gpu"}
        assert "color_space_conversion" not in {e.op for e in emitted}


@pytest.mark.parametrize("what", DTYPES_TAKEN)
def test_what_a_step_may_be_given_is_what_the_table_says(image: dict[str, Any], what: str) -> None:
    steps: dict[str, tuple[str, int]] = {
        "crop": ("random_crop", 0),
        "flip": ("random_vertical_flip", 0),
        "resize": ("resize", 0),
        "warp": ("random_affine", 0),
        "perspective": ("random_perspective", 0),
        "erase": ("random_erasing", 0),
        "add": ("gaussian_noise", 0),
        "remap": ("elastic_transform", 0),
        "pad": ("pad", -1),
        "color_matrix": ("grayscale", 0),
        "color": ("random_channel_permutation", 0),
        "blend": ("aug_mix", 0),
        "normalize": ("normalize", 0),
    }
    name, number = steps[what]
    case = {name: STEPS[name][number]}
    scale = what == "add"  # its step refuses floats that are not scaled
    taken = [
        dtype
        for dtype in DTYPES
        if not isinstance(outcome(image, [*of_image(dtype, scale, case), case], "dali"), str)
    ]
    assert taken == [dtype for dtype in DTYPES if dtype in DTYPES_TAKEN[what]]


LEVELS = {"jpeg", "random_equalize", "random_posterize", *POLICIES}
"""Steps that take uint8 alone."""
HALF = [
    case
    for case in CASES
    if not ({"to_dtype", "normalize"} | LEVELS) & case.keys()
    and case not in ({"random_solarize": {"threshold": 128, "p": 1}}, LINEAR)
]


@pytest.mark.parametrize("case", HALF, ids=str)
def test_float16_is_float32_rounded(image: dict[str, Any], case: dict[str, Any]) -> None:
    """On each engine: places in the image are not rounded with it."""
    for engine in ENGINES:
        half, full = (
            tensor(outcome(image, [*of_image(dtype, True, case), case], engine))
            for dtype in ("float16", "float32")
        )
        assert half.dtype == torch.float16
        torch.testing.assert_close(half.float(), full, rtol=0, atol=2 * ULP)


@pytest.mark.parametrize("engine", ENGINES)
def test_float16_in_between_is_not_forgotten(image: dict[str, Any], engine: str) -> None:
    steps = [
        "decode",
        *({"to_dtype": {"dtype": dtype, "scale": True}} for dtype in ("float16", "float32")),
    ]
    made = tensor(outcome(image, steps, engine))
    assert torch.equal(made, made.half().float())
    assert made.dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_deferred_has_the_dtype_that_it_had(image: dict[str, Any], dtype: str) -> None:
    """Images of any dtype that are cut and mirrored, and become another: DALI's graph does it in
    another order.
    """
    steps = [*of_image(dtype), {"random_crop": {"size": 12}}, {"random_vertical_flip": {"p": 1}}]
    for last in ("float32", "float16", "uint8", "int64"):
        *others, expected = (
            outcome(image, [*steps, {"to_dtype": {"dtype": last}}], engine) for engine in ENGINES
        )
        assert all(torch.equal(tensor(made), tensor(expected)) for made in others)


@pytest.mark.parametrize("wanted", ["uint8", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loader_dtype_is_made_of_every_dtype(
    image: dict[str, Any], dtype: str, wanted: str
) -> None:
    *others, expected = (
        tensor(outcome(image, of_image(dtype), engine, dtype=wanted)) for engine in ENGINES
    )
    assert expected.dtype == getattr(torch, wanted)
    for made in others:
        assert made.dtype == expected.dtype
        assert torch.equal(made, expected)
