"""The dtypes that DALI's operators take, and how other dtypes are passed through them.

`OPERATORS` lists what DALI 2.4 accepts on both the CPU and a GPU. Every dtype in
`primitives.DTYPES_TAKEN` is one of these, or has a substitute.

tests/engines/dali/test_dtypes.py compares the table with the operators of DALI's CPU back end and
the GPU kernels in DALI's library.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gpupipe.formats.npy import DTYPES

_NUMBERS = tuple(dtype for dtype in DTYPES if dtype not in ("bool", "float16"))

OPERATORS: dict[str, tuple[str, ...]] = {
    "slice": (*_NUMBERS, "float16"),
    "flip": _NUMBERS,
    "resize": ("uint8", "int16", "uint16", "float32"),
    "warp_affine": ("uint8", "int16", "int32", "float32"),
    "experimental.warp_perspective": ("uint8", "int16", "uint16", "float32"),
    "erase": tuple(dtype for dtype in _NUMBERS if dtype != "float64"),
    "coord_transform": ("uint8", "int16", "uint16", "int32", "float32"),
    "color_space_conversion": ("uint8",),
    "crop_mirror_normalize": ("uint8", "int16", "uint16", "int32", "float16", "float32"),
}
"""The dtypes that each DALI operator accepts. Operators that are not listed accept all dtypes."""

_SAME_SIZE = {
    "bool": "uint8",
    "float16": "int16",
    "uint16": "int16",
    "uint32": "int32",
    "uint64": "int64",
}
_MOVERS = ("slice", "flip")
"""Operators that only move values: any integer dtype of the same size can stand in for another."""


class Substitute(NamedTuple):
    """How values are passed to an operator, which may not accept their dtype.

    Attributes:
        dtype: The dtype that the operator sees.
        by: "bits" to reinterpret the memory as `dtype`, "value" to convert.
    """

    dtype: str
    by: Literal["bits", "value"] = "value"


def find_substitute(operator: str, dtype: str) -> Substitute | None:
    """Return how to pass values of `dtype` to a DALI operator; None if that is impossible.

    float16 is computed in float32, which can represent every float16, and rounded afterwards.
    """
    accepted = OPERATORS.get(operator, DTYPES)
    if dtype in accepted:
        return Substitute(dtype)
    if operator in _MOVERS and _SAME_SIZE.get(dtype) in accepted:
        return Substitute(_SAME_SIZE[dtype], "bits")
    return Substitute("float32") if dtype == "float16" and "float32" in accepted else None


def as_integers(dtype: str) -> str:
    """Return the dtype in which values go from DALI to torch.

    Of the unsigned dtypes only uint8 passes; the others pass as signed integers of their size.
    """
    return _SAME_SIZE[dtype] if dtype in ("uint16", "uint32", "uint64") else dtype
