"""The table of dtypes, held against the operators and kernels of DALI."""

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nvidia.dali
import pytest
from nvidia.dali import Pipeline, backend, fn, types

from gpupipe.engines.dali.operators import ops
from gpupipe.engines.dali.operators.dtypes import (
    OPERATORS,
    as_integers,
    find_refused_dtype,
    find_substitute,
)
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline.spec_checks import DTYPES_TAKEN
from gpupipe.runtime.failures import machine_failure

EYE = np.eye(3, dtype=np.float32)

MADE: dict[str, Callable[[Any], Any]] = {
    "slice": lambda node: ops.cut(node, [-1, 0], [4, 4], (1.0,)),
    "flip": lambda node: ops.flip(node, 1, 1),
    "resize": lambda node: ops.resize(node, [4, 4], interpolation="bilinear", antialias=True),
    "warp_affine": lambda node: ops.warp_affine(
        node, EYE[:2].ravel().tolist(), None, "bilinear", 0.0
    ),
    "experimental.warp_perspective": lambda node: ops.warp_perspective(
        node, EYE.ravel().tolist(), None, "bilinear", fill_value=[0.0, 0.0, 0.0]
    ),
    "erase": lambda node: ops.erase(node, [1, 1], [2, 2], (1.0,)),
    "coord_transform": lambda node: fn.coord_transform(node, M=[0.2, 0.3, 0.5]),
    "color_space_conversion": lambda node: fn.color_space_conversion(
        node, image_type=types.RGB, output_type=types.BGR
    ),
    "crop_mirror_normalize": lambda node: ops.normalize(
        node, (), 1, dtype="float32", layout="CHW", mean=(0.0,), std=(1.0,)
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
    "erase": rb"8EraseGpuI" + TYPE + rb"Li3ELi2E",
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
        assert find_refused_dtype(str(e)), e
        assert not machine_failure(e)
        return False
    return True


CPU_ALONE = {"erase": {"float16"}}
"""What an operator takes on a CPU and not on a GPU: the table leaves it out."""


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_table_says_what_dalis_cpu_back_end_takes(operator: str) -> None:
    taken = {dtype for dtype in DTYPES if runs(MADE[operator], dtype)}
    assert taken == set(OPERATORS[operator]) | CPU_ALONE.get(operator, set())


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
    """color_space_conversion runs on the CPU alone (Node.color_matrix)."""
    assert (
        OPERATORS.keys()
        == MADE.keys()
        == KERNELS.keys() | {"experimental.warp_perspective", "color_space_conversion"}
    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_handed_over_is_taken(operator: str) -> None:
    for dtype in DTYPES:
        given = find_substitute(operator, dtype)
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
    assert all(find_substitute("transpose", dtype) == (dtype, "value") for dtype in DTYPES)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dali_hands_these_to_torch(dtype: str) -> None:
    from nvidia.dali.plugin.pytorch import to_torch_type

    known = {str(t).removeprefix("torch."): d for d, t in to_torch_type.items()}
    assert as_integers(dtype) in known
    assert (as_integers(dtype) == dtype) == (dtype in known)


OPERATORS_OF = {
    "crop": ("slice",),
    "flip": ("flip",),
    "resize": ("resize",),
    "warp": ("warp_affine", "experimental.warp_perspective"),
    "perspective": ("experimental.warp_perspective",),
    "erase": ("erase",),
    "pad": ("experimental.warp_perspective",),
    "color_matrix": ("coord_transform",),
    "normalize": ("crop_mirror_normalize",),
}
"""The operators of each primitive; "normalize" computes float64 with arithmetic."""


OF_FLOATS = {"add_noise", "color", "blend", "elastic"}
"""Primitives that compute float16 in float32 themselves, whatever their operators take."""


def test_every_primitive_is_looked_at() -> None:
    assert DTYPES_TAKEN.keys() == OPERATORS_OF.keys() | OF_FLOATS


@pytest.mark.parametrize("primitive", OPERATORS_OF)
def test_every_dtype_of_a_primitive_passes_through_its_operators(primitive: str) -> None:
    for dtype in DTYPES_TAKEN[primitive]:
        if (primitive, dtype) != ("normalize", "float64"):
            assert all(find_substitute(operator, dtype) for operator in OPERATORS_OF[primitive])
