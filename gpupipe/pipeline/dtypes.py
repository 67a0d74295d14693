"""Which numbers operators take: the table by which steps refuse, and by which engines convert.

`OPERATORS` says what DALI 2.4 takes, on the CPU and on a GPU alike. `TAKEN` says what a step may be
given, on every engine: what its operators take, what they can be handed as another dtype
(`handed`), and no more than that, so that a pipeline means the same everywhere.
tests/pipeline/test_dtypes.py holds both against the operators of DALI's CPU back end, the GPU
kernels in DALI's library, and torchvision.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from gpupipe.formats.npy import DTYPES

_NUMBERS = tuple(dtype for dtype in DTYPES if dtype not in ("bool", "float16"))
_IMAGES = ("uint8", "float16", "float32")
"""Numbers that pixels of images have: for steps whose meaning for others differs between engines.
"""

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
"""What DALI's operators take, by their names. Those that are not listed take all dtypes."""

_SAME_SIZE = {
    "bool": "uint8",
    "float16": "int16",
    "uint16": "int16",
    "uint32": "int32",
    "uint64": "int64",
}
_MOVERS = ("slice", "flip")
"""Operators that only move numbers, so that any integers of their size serve."""


class Handed(NamedTuple):
    """How an operator is given numbers: as `dtype`, their bits left as they are, or their
    values.
    """

    dtype: str
    by: Literal["bits", "value"] = "value"


def handed(operator: str, dtype: str) -> Handed | None:
    """How numbers of `dtype` are given to an operator of DALI; None if it cannot be.

    float16 is computed in float32, which holds every float16, and rounded afterwards.
    """
    taken = OPERATORS.get(operator, DTYPES)
    if dtype in taken:
        return Handed(dtype)
    if operator in _MOVERS and _SAME_SIZE.get(dtype) in taken:
        return Handed(_SAME_SIZE[dtype], "bits")
    return Handed("float32") if dtype == "float16" and "float32" in taken else None


def as_integers(dtype: str) -> str:
    """The dtype of the same size by which DALI hands numbers to torch: it has no unsigned ones but
    uint8.
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
"""What a step may be given, by what it does. float64 is normalized by DALI's arithmetic."""
