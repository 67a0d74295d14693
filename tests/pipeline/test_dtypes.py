"""The table of dtypes, held against DALI, and every step on every dtype: it runs on both engines,
or neither begins.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali
import pytest
import torch
from arrays import ENGINES, numbers, saved
from every_step import CASES, SIZE, STEPS, of_image, photograph
from nvidia.dali import Pipeline, backend, fn, types

import gpupipe
from gpupipe import config
from gpupipe.dataset.index import nothing
from gpupipe.engines.bad_samples import refused_dtype
from gpupipe.engines.base import LoadSpec
from gpupipe.engines.dali import ops
from gpupipe.engines.dali.graph import Lowering
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline import step
from gpupipe.pipeline.dtypes import OPERATORS, TAKEN, as_integers, handed
from gpupipe.runtime.machine_failures import machine_failure

EYE = np.eye(3, dtype=np.float32)
ULP = 2.0**-10
"""Between two float16s."""

# --- the table and DALI

MADE: dict[str, Callable[[Any], Any]] = {
    "slice": lambda node: ops.cut(node, [-1, 0], [4, 4], (1.0,)),
    "flip": lambda node: ops.flip(node, 1, 1),
    "resize": lambda node: ops.resize(node, [4, 4], "bilinear", True),
    "warp_affine": lambda node: ops.warp_affine(
        node, EYE[:2].ravel().tolist(), None, "bilinear", 0.0
    ),
    "experimental.warp_perspective": lambda node: ops.warp_perspective(
        node, EYE.ravel().tolist(), None, "bilinear", (0.0, 0.0, 0.0)
    ),
    "coord_transform": lambda node: fn.coord_transform(node, M=[0.2, 0.3, 0.5]),
    "color_space_conversion": lambda node: fn.color_space_conversion(
        node, image_type=types.RGB, output_type=types.BGR
    ),
    "crop_mirror_normalize": lambda node: ops.normalize(
        node, 1, (None, None), (None, None), "float32", "CHW", (0.0,), (1.0,)
    ),
}
LETTERS = {
    "a": "int8",
    "h": "uint8",
    "s": "int16",
    "t": "uint16",
    "i": "int32",
    "j": "uint32",
    "l": "int64",
    "m": "uint64",
}
LETTERS |= {
    "f": "float32",
    "d": "float64",
    "b": "bool",
    "DF16_": "float16",
    "NS_7float16E": "float16",
    "NS1_7float16E": "float16",
}
"""Of types in C++ symbols (Itanium ABI)."""
TYPE = rb"([ahstijlmfdb]|NS1?_7float16E)"
SAME = rb"(?:\1|S\d?_)"
KERNELS = {
    "slice": rb"12SliceBaseGpuI" + TYPE + SAME + rb"Li3E",
    "flip": rb"10FlipKernelILm0ELb0E" + TYPE + rb"E",
    "resize": rb"15ResizeOpImplGPUI" + TYPE + SAME + rb"Li2E",
    "warp_affine": rb"7WarpGPUINS2_13AffineMappingILi2EEELi2E" + TYPE + SAME + SAME + rb"E",
    "coord_transform": rb"18TransformPointsGPUI(?:f|[hsti])" + TYPE + rb"Li1ELi3E",
    "crop_mirror_normalize": rb"21SliceFlipNormalizeGPUIf" + TYPE + rb"Li2E",
}
"""What kernels on a GPU are called, by operator: the group is the type that they are given."""


def runs(make: Callable[[Any], Any], dtype: str) -> bool:
    """Whether an operator of DALI's CPU back end takes a small image of this dtype."""
    with Pipeline(1, 1, None, exec_dynamic=True) as pipe:
        given = fn.external_source(
            lambda: [np.ones((8, 8, 3), np.uint8)],
            batch=True,
            dtype=types.UINT8,
            ndim=3,
            layout="HWC",
        )
        pipe.set_outputs(make(fn.cast(given, dtype=types.to_dali_type(dtype))))
    pipe.build()
    try:
        pipe.run()
    except RuntimeError as e:
        assert refused_dtype(str(e)), e
        assert not machine_failure(e)
        return False
    return True


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_table_says_what_dalis_cpu_back_end_takes(operator: str) -> None:
    assert {dtype for dtype in DTYPES if runs(MADE[operator], dtype)} == set(OPERATORS[operator])


@pytest.mark.parametrize("operator", [name for name in OPERATORS if name in KERNELS])
def test_the_table_says_what_dali_has_gpu_kernels_for(operator: str) -> None:
    library = Path(nvidia.dali.__file__).parent / "libdali_operators.so"
    with library.open("rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
        found = {LETTERS[m.group(1).decode()] for m in re.finditer(KERNELS[operator], data)}
    assert found == set(OPERATORS[operator])


def test_the_table_says_what_the_schema_of_warp_perspective_does() -> None:
    """Whose GPU kernels are CV-CUDA's."""
    said = backend.GetSchema("experimental__WarpPerspective").GetInputType(0)
    names = {"float": "float32"}
    assert {names.get(n, n) for n in re.findall(r"u?int\d+|float", said)} == set(
        OPERATORS["experimental.warp_perspective"]
    )


def test_every_operator_is_looked_at() -> None:
    """color_space_conversion runs on the CPU alone (steps/grayscale.py)."""
    assert (
        OPERATORS.keys()
        == MADE.keys()
        == KERNELS.keys() | {"experimental.warp_perspective", "color_space_conversion"}
    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_handed_over_is_taken(operator: str) -> None:
    for dtype in DTYPES:
        given = handed(operator, dtype)
        assert (given is None) <= (dtype not in OPERATORS[operator])
        if given is not None:
            assert given.dtype in OPERATORS[operator]
            assert given.by == "value" or np.dtype(given.dtype).itemsize == np.dtype(dtype).itemsize
            assert (
                given.dtype == dtype
                or given.by == "bits"
                or (dtype, given.dtype) == ("float16", "float32")
            )


def test_what_the_table_does_not_name_takes_everything() -> None:
    for make in (
        lambda n: fn.transpose(n, perm=[2, 0, 1]),
        lambda n: fn.reinterpret(n, layout="HWC"),
        lambda n: fn.cast(n, dtype=types.FLOAT),
    ):
        assert all(runs(make, dtype) for dtype in DTYPES)
    assert all(handed("transpose", dtype) == (dtype, "value") for dtype in DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dali_hands_these_to_torch(dtype: str) -> None:
    from nvidia.dali.plugin.pytorch import to_torch_type

    known = {str(t).removeprefix("torch."): d for d, t in to_torch_type.items()}
    assert as_integers(dtype) in known
    assert (as_integers(dtype) == dtype) == (dtype in known)


# --- every step on every dtype


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return photograph(tmp_path_factory.mktemp("photograph"))


def outcome(
    data: dict[str, Any], steps: list[Any], engine: str, **options: Any
) -> torch.Tensor | str:
    """What an engine delivers, or how the config is refused; anything else is raised."""
    written = {"data": data, "pipeline": steps}
    try:
        config.read(written)
    except gpupipe.ConfigError as e:
        return str(e)
    with gpupipe.load(
        written, device="cpu", batch_size=1, threads=1, **ENGINES[engine], **options
    ) as loader:
        return next(iter(loader))[loader.config.pipeline.main][0]


def tensor(found: torch.Tensor | str) -> torch.Tensor:
    assert isinstance(found, torch.Tensor), found
    return found


def agree(made: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    """To the bit, but for pixels that are made between others, which agree in the mean; gray, to a
    level; and floats, as they are rounded.
    """
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    wide = made.double(), expected.double()
    if step.find(name).interpolates:
        assert (wide[0] - wide[1]).abs().mean() <= 0.05 * wide[1].abs().max()
    elif name in ("normalize", "grayscale") or made.dtype == torch.float16:
        tolerance = {torch.uint8: 1.0, torch.float16: ULP}.get(made.dtype, 1e-6)
        torch.testing.assert_close(*wide, rtol=0 if tolerance == 1.0 else tolerance, atol=tolerance)
    else:
        assert torch.equal(made, expected)


@pytest.mark.parametrize("kind", ["image", "CHW", "HW"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_step_runs_on_both_engines_or_is_refused(
    image: dict[str, Any], tmp_path: Path, dtype: str, kind: str
) -> None:
    shape = {"CHW": (3, *SIZE), "HW": SIZE}
    data = (
        image
        if kind == "image"
        else saved(tmp_path, numbers(dtype, (1, *shape[kind])), layout=kind)
    )
    before = of_image(dtype) if kind == "image" else []
    for case in [
        case for case in CASES if kind == "image" or "to_dtype" not in case
    ]:  # arrays: tests/engines/test_arrays.py
        (name,) = case
        made, expected = (outcome(data, [*before, case], engine) for engine in ENGINES)
        if isinstance(expected, str):
            assert made == expected
            assert re.match(
                rf"config: pipeline\.{len(before)}: {name} cannot stand here: .*: "
                r"(write|leave it out|set|take) ?",
                expected,
            ), expected
        else:
            agree(tensor(made), expected, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_graphs_for_a_gpu_are_built_of_operators_that_take_it(dtype: str) -> None:
    """As nodes: no GPU is needed for that."""
    for case in CASES:
        written = {
            "data": {"source": "folder", "root": "/nowhere"},
            "pipeline": [*of_image(dtype), case],
        }
        try:
            checked = config.read(written)
        except gpupipe.ConfigError:
            continue
        emitted = Lowering(
            LoadSpec(nothing(), checked.pipeline, checked.loader, 1), "gpu", False
        ).emitted()
        assert emitted[0].device == "mixed"
        assert {e.device for e in emitted[1:]} <= {"gpu"}
        assert "color_space_conversion" not in {e.op for e in emitted}


@pytest.mark.parametrize("what", TAKEN)
def test_what_a_step_may_be_given_is_what_the_table_says(image: dict[str, Any], what: str) -> None:
    steps = {
        "crop": "random_crop",
        "flip": "random_vertical_flip",
        "resize": "resize",
        "warp": "random_affine",
        "normalize": "normalize",
    }
    name = steps[what]
    taken = [
        dtype
        for dtype in DTYPES
        if not isinstance(outcome(image, [*of_image(dtype), {name: STEPS[name][0]}], "dali"), str)
    ]
    assert taken == [dtype for dtype in DTYPES if dtype in TAKEN[what]]


HALF = [case for case in CASES if not {"to_dtype", "normalize"} & case.keys()]


@pytest.mark.parametrize("case", HALF, ids=str)
def test_float16_is_float32_rounded(image: dict[str, Any], case: dict[str, Any]) -> None:
    """On each engine: places in the image are not rounded with it."""
    scaled = {"dtype": "float32", "scale": True}
    for engine in ENGINES:
        half = tensor(
            outcome(image, ["decode", {"to_dtype": scaled | {"dtype": "float16"}}, case], engine)
        )
        full = tensor(outcome(image, ["decode", {"to_dtype": scaled}, case], engine))
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
        made, expected = (
            outcome(image, [*steps, {"to_dtype": {"dtype": last}}], engine) for engine in ENGINES
        )
        assert torch.equal(tensor(made), tensor(expected))


@pytest.mark.parametrize("wanted", ["uint8", "float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_loader_dtype_is_made_of_every_dtype(
    image: dict[str, Any], dtype: str, wanted: str
) -> None:
    made, expected = (
        tensor(outcome(image, of_image(dtype), engine, dtype=wanted)) for engine in ENGINES
    )
    assert made.dtype == getattr(torch, wanted)
    assert torch.equal(made, expected)
