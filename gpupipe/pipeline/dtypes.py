"""Tables of the dtypes that operators and steps accept.

Steps refuse inputs by these tables, and engines convert by them. `OPERATORS` lists what DALI 2.4
accepts on both the CPU and a GPU. `TAKEN` lists what a step accepts on every engine: the dtypes of
its DALI operators, and those that can be passed to them as another dtype (`handed`). It lists no
others, so that a pipeline means the same everywhere.

tests/pipeline/test_dtypes.py compares both tables with the operators of DALI's CPU back end, the
GPU kernels in DALI's library, and torchvision.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gpupipe.formats.npy import DTYPES

_NUMBERS = tuple(dtype for dtype in DTYPES if dtype not in ("bool", "float16"))
_IMAGES = ("uint8", "float16", "float32")
"""The usual dtypes of image pixels, for steps on which the engines disagree in other dtypes."""

OPERATORS: dict[str, tuple[str, ...]] = {
    "slice": (*_NUMBERS, "float16"),
    "flip": _NUMBERS,
    "resize": ("uint8", "int16", "uint16", "float32"),
    "warp_affine": ("uint8", "int16", "int32", "float32"),
    "experimental.warp_perspective": ("uint8", "int16", "uint16", "float32"),
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


class Handed(NamedTuple):
    """How values are passed to an operator that does not accept their dtype.

    Attributes:
        dtype: The dtype that the operator sees.
        by: "bits" to reinterpret the memory as `dtype`, "value" to convert.

    """

    dtype: str
    by: Literal["bits", "value"] = "value"


def handed(operator: str, dtype: str) -> Handed | None:
    """Return how to pass values of `dtype` to a DALI operator; None if that is impossible.

    float16 is computed in float32, which can represent every float16, and rounded afterwards.
    """
    taken = OPERATORS.get(operator, DTYPES)
    if dtype in taken:
        return Handed(dtype)
    if operator in _MOVERS and _SAME_SIZE.get(dtype) in taken:
        return Handed(_SAME_SIZE[dtype], "bits")
    return Handed("float32") if dtype == "float16" and "float32" in taken else None


def as_integers(dtype: str) -> str:
    """Return the dtype in which values go from DALI to torch.

    Of the unsigned dtypes only uint8 passes; the others pass as signed integers of their size.
    """
    return _SAME_SIZE[dtype] if dtype in ("uint16", "uint32", "uint64") else dtype


def _by(*operators: str, of: tuple[str, ...] = DTYPES) -> tuple[str, ...]:
    return tuple(dtype for dtype in of if all(handed(operator, dtype) for operator in operators))


TAKEN: dict[str, tuple[str, ...]] = {
    "crop": _by("slice"),
    "flip": _by("flip"),
    "resize": _by("resize"),
    "warp": _by("warp_affine", "experimental.warp_perspective", "coord_transform", of=_IMAGES),
    "normalize": (*_by("crop_mirror_normalize", of=("float16", "float32")), "float64"),
}
"""The dtypes that a step accepts, by its operation. DALI arithmetic normalizes float64."""
