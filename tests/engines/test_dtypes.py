"""Every step on every dtype: it runs on every engine, or none begins.

Data are images, and arrays of two layouts. Each pair of a step and a dtype gets one of the three:
so each step meets each dtype and each kind of data, and one loader has all steps as its views. With
GPUPIPE_TEST_ALL=1 (`make test-all`) it gets all three, and a loader of its own.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.dataset.index import build_empty
from gpupipe.engines.base import Job
from gpupipe.engines.dali.lowering import Lowering
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.spec_checks import DTYPES_TAKEN
from helpers.arrays import ENGINES, numbers, saved
from helpers.every_step import (
    CASES,
    COLORS,
    LINEAR,
    ON_CPU,
    POLICIES,
    SIZE,
    STEPS,
    of_image,
    photograph,
)
from helpers.full_product import IS_FULL
from helpers.many_views import deliver_each, read_each

ULP = 2.0**-10
"""Between two float16s."""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return photograph(tmp_path_factory.mktemp("photograph"))


def tensor(found: torch.Tensor | str) -> torch.Tensor:
    assert isinstance(found, torch.Tensor), found
    return found


def agree(made: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """To the bit, but for pixels that are made between others, which agree in the mean; colours, to
    a level; and floats, as they are rounded.
    """
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    wide = made.double(), expected.double()
    if step_registry.STEPS.find(name).interpolates is True:  # containers say it of what they hold
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
        if (IS_FULL or kind == turn) and (kind == "image" or "to_dtype" not in case):
            yield case


def check_agreement(
    data: dict[str, Any], kind: str, dtype: str, cases: list[dict[str, Any]]
) -> None:
    """Each case runs on every engine, or none, with the same message. One loader has them all."""
    before = {True: ["decode"], False: []}[kind == "image"]
    pipelines = {
        f"case_{number}": [*(of_image(dtype, case=case)[1:] if before else []), case]
        for number, case in enumerate(cases)
    }
    *others, reference = (
        deliver_each(data, pipelines, engine, before=before) for engine in ENGINES
    )
    for (key, steps), case in zip(pipelines.items(), cases, strict=True):
        (name,), expected = case, reference[key]
        if isinstance(expected, str):
            assert all(made[key] == expected for made in others), (case, expected)
            assert re.match(
                rf"{len(steps) - 1}: {name} cannot stand here: .*: (write|leave it out|set|take) ?",
                expected,
            ), expected
        else:
            for made in others:
                agree(tensor(made[key]), expected, name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_step_runs_on_both_engines_or_is_refused(
    image: dict[str, Any], tmp_path: Path, dtype: str, kind: str
) -> None:
    cases = list(iter_cases(kind, dtype))
    if kind == "image":
        groups = [(image, cases)]
    else:
        array = numbers(dtype, (1, *{"CHW": (3, *SIZE), "HW": SIZE}[kind]))
        data = saved(tmp_path, array, layout=kind)
        colors = []
        if array.dtype.kind == "f":
            colors = [case for case in cases if next(iter(case)) in COLORS]
            (tmp_path / "colors").mkdir()
        groups = [(data, [case for case in cases if case not in colors])]
        if colors:
            levels = saved(tmp_path / "colors", np.abs(array) / 2, layout=kind)
            groups.append((levels, colors))
    for data, group in groups:
        for some in [[case] for case in group] if IS_FULL else [group]:
            check_agreement(data, kind, dtype, some)


@pytest.mark.parametrize("dtype", DTYPES)
def test_graphs_for_a_gpu_are_built_of_operators_that_take_it(dtype: str) -> None:
    """As nodes: no GPU is needed for that. Steps that call torch are refused there."""
    data = {"source": "folder", "root": "/nowhere"}
    pipelines = {
        f"case_{number}": [*of_image(dtype, case=case)[1:], case]
        for number, case in enumerate(CASES)
        if case not in ON_CPU
    }
    checked, _ = read_each(data, pipelines, ["decode"])
    assert checked is not None
    emitted = Lowering(
        Job(build_empty(), checked.pipeline, checked.loader, 1), "gpu", False
    ).operators()
    assert emitted[0].device == "mixed"
    assert {e.device for e in emitted[1:]} <= {"gpu"}
    assert "color_space_conversion" not in {e.op for e in emitted}


TAKERS: dict[str, tuple[str, int]] = {
    "crop": ("random_crop", 0),
    "flip": ("random_vertical_flip", 0),
    "resize": ("resize", 0),
    "warp": ("random_affine", 0),
    "perspective": ("random_perspective", 0),
    "erase": ("random_erasing", 0),
    "add_noise": ("gaussian_noise", 0),
    "elastic": ("elastic_transform", 0),
    "pad": ("pad", -1),
    "color_matrix": ("grayscale", 0),
    "color": ("random_channel_permutation", 0),
    "blend": ("aug_mix", 0),
    "normalize": ("normalize", 0),
}
"""A step for each row of the table, and the number of its parameters in STEPS."""


def test_what_a_step_may_be_given_is_what_the_table_says(image: dict[str, Any]) -> None:
    assert TAKERS.keys() == DTYPES_TAKEN.keys()
    pipelines = {}
    for what, (name, number) in TAKERS.items():
        case = {name: STEPS[name][number]}
        scale = what == "add_noise"  # its step refuses floats that are not scaled
        for dtype in DTYPES:
            pipelines[f"{what}_{dtype}"] = [*of_image(dtype, scale, case)[1:], case]
    made = deliver_each(image, pipelines, "dali", before=["decode"])
    for what in TAKERS:
        taken = [dtype for dtype in DTYPES if not isinstance(made[f"{what}_{dtype}"], str)]
        assert taken == [dtype for dtype in DTYPES if dtype in DTYPES_TAKEN[what]], what


LEVELS = {"jpeg", "random_equalize", "random_posterize", *POLICIES}
"""Steps that take uint8 alone."""
HALF = [
    case
    for case in CASES
    if not ({"to_dtype", "normalize"} | LEVELS) & case.keys()
    and case not in ({"random_solarize": {"threshold": 128, "p": 1}}, LINEAR)
]


@pytest.mark.parametrize("engine", ENGINES)
def test_float16_is_float32_rounded(image: dict[str, Any], engine: str) -> None:
    """Of every step: places in the image are not rounded with it."""
    half, full = (
        deliver_each(
            image,
            {f"case_{n}": [*of_image(dtype, True, case)[1:], case] for n, case in enumerate(HALF)},
            engine,
            before=["decode"],
        )
        for dtype in ("float16", "float32")
    )
    for n, case in enumerate(HALF):
        rounded, expected = tensor(half[f"case_{n}"]), tensor(full[f"case_{n}"])
        assert rounded.dtype == torch.float16
        torch.testing.assert_close(
            rounded.float(), expected, rtol=0, atol=2 * ULP, msg=lambda m, case=case: f"{case}: {m}"
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_float16_in_between_is_not_forgotten(image: dict[str, Any], engine: str) -> None:
    steps = [{"to_dtype": {"dtype": dtype, "scale": True}} for dtype in ("float16", "float32")]
    made = tensor(deliver_each(image, {"made": steps}, engine, before=["decode"])["made"])
    assert torch.equal(made, made.half().float())
    assert made.dtype == torch.float32


def test_what_is_deferred_has_the_dtype_that_it_had(image: dict[str, Any]) -> None:
    """Images of any dtype that are cut and mirrored, and become another: DALI's graph does it in
    another order.
    """
    moves = [{"random_crop": {"size": 12}}, {"random_vertical_flip": {"p": 1}}]
    pipelines = {
        f"{dtype}_to_{last}": [*of_image(dtype)[1:], *moves, {"to_dtype": {"dtype": last}}]
        for dtype in DTYPES
        for last in ("float32", "float16", "uint8", "int64")
    }
    *others, reference = (
        deliver_each(image, pipelines, engine, before=["decode"]) for engine in ENGINES
    )
    for name, expected in reference.items():
        for made in others:
            assert torch.equal(tensor(made[name]), tensor(expected)), name


@pytest.mark.parametrize("wanted", ["uint8", "float16", "bfloat16", "float32"])
def test_loader_dtype_is_made_of_every_dtype(image: dict[str, Any], wanted: str) -> None:
    pipelines = {f"from_{dtype}": of_image(dtype)[1:] for dtype in DTYPES}
    *others, reference = (
        deliver_each(image, pipelines, engine, before=["decode"], dtype=wanted)
        for engine in ENGINES
    )
    for name in pipelines:
        expected = tensor(reference[name])
        assert expected.dtype == getattr(torch, wanted)
        for made in others:
            assert tensor(made[name]).dtype == expected.dtype
            assert torch.equal(tensor(made[name]), expected), name
