"""The dtypes that DALI's operators take, and conversions that agree with steps/to_dtype.py.

`OPERATORS` lists what DALI 2.4 accepts on both the CPU and a GPU. Every dtype in
`spec_checks.DTYPES_TAKEN` is one of these, or has a substitute. tests/engines/dali/operators/
test_dtypes.py compares the table with the operators of DALI's CPU back end and the GPU kernels in
DALI's library. `find_refused_dtype` finds, in an error message of DALI, the line about a refused
dtype.

A conversion to integers truncates floats, and clips numbers to the range of the target dtype.
DALI's cast also clips, and turns NaN into 0, but it rounds floats. DALI has no bit shift: this
module divides by 2**k, after it has set the last k bits to 0. On a CPU, DALI's cast to float16
rounds a number half-way between two float16 numbers to the larger one, not to the even one.
"""

import re
from typing import Any, Literal, NamedTuple

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali import math as dali_math
from nvidia.dali.data_node import DataNode

from gpupipe.engines.bad_samples import find_cause
from gpupipe.engines.dali.operators.subgraph import Make
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
_LESS_THAN_ONE = 1e-3
"""torchvision's constant, as in steps/to_dtype.py."""
_BITS_AT_ONCE = 14
"""How many bits are shifted at once. Every integer dtype of 16 bits or more can hold 2**14. Dtypes
of 8 bits are never shifted by more than one bit.
"""
_REFUSED_DTYPE = re.compile(
    r"(?:Unsupported|Not supported) (?:(?:input|data|output|input/output) "
    r")?types?\b|(?:element|data) type .*(?:is )?not supported"
    r"|accepts the following input types|accept only uint8 tensors"
)
"""Texts with which operators refuse a dtype."""
_FILE_OPERATORS = (
    "nvidia.dali.fn.decoders.",
    "nvidia.dali.fn.peek_image_shape",
    "nvidia.dali.fn.io.",
)
"""Operators that read files. A dtype that they refuse is that of a single file."""


class Substitute(NamedTuple):
    """States in which dtype an operator gets values, and how they are converted to it.

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
    """Return the dtype in which values of `dtype` are copied from DALI to torch.

    uint16, uint32 and uint64 are copied as the signed dtype of the same size. Every other dtype
    stays as it is.
    """
    return _SAME_SIZE[dtype] if dtype in ("uint16", "uint32", "uint64") else dtype


def dali_type(dtype: str) -> Any:
    """Return DALI's type for a dtype name."""
    return types.to_dali_type(dtype)


def cast(node: DataNode, dtype: str) -> DataNode:
    """Convert a node with DALI's cast, which rounds floats and clips to the range of `dtype`."""
    return fn.cast(node, dtype=dali_type(dtype))


def through_supported(operator: str, dtype: str, make: Make) -> Make:
    """Return `make`, wrapped in conversions if the operator does not support `dtype`.

    Args:
        operator: The operator's name in `OPERATORS`.
        dtype: The dtype of the input and the output.
        make: Applies the operator to a node, with further arguments.
    """
    substitute = find_substitute(operator, dtype)
    if substitute is None or substitute.dtype == dtype:
        return make
    own, other = dali_type(dtype), dali_type(substitute.dtype)
    convert = fn.reinterpret if substitute.by == "bits" else fn.cast
    return lambda node, *arguments: convert(make(convert(node, dtype=other), *arguments), dtype=own)


def in_float32(make: Make, dtype: str) -> Make:
    """Return `make`. For float16, wrap it to compute in float32, and to round only the result."""
    if dtype != "float16":
        return make
    return lambda pixels, *nodes: cast(make(cast(pixels, "float32"), *nodes), "float16")


def for_torch(node: DataNode, dtype: str) -> DataNode:
    """Reinterpret a node of `dtype` as the dtype that `as_integers` returns."""
    other = as_integers(dtype)
    return node if other == dtype else fn.reinterpret(node, dtype=dali_type(other))


def is_float(dtype: str) -> bool:
    """Return whether an array in DALI has a float dtype. DALI has no bfloat16."""
    return dtype.startswith("float")


def convert(node: DataNode, source_dtype: str, target_dtype: str) -> DataNode:
    """Convert a node of dtype `source_dtype` to dtype `target_dtype` without scaling."""
    if target_dtype == "bool":
        return node if source_dtype == "bool" else _as_float32(node, source_dtype) != 0
    if is_float(source_dtype) and not is_float(target_dtype):
        node = _truncate(_as_float32(node, source_dtype))
    return cast(node, target_dtype)


def scale_factor(source_dtype: str, target_dtype: str) -> float | None:
    """Return the factor by which `convert_scaled` multiplies.

    Return None for two integer dtypes, whose bits are shifted instead.
    """
    if is_float(target_dtype):
        return 1.0 / int(np.iinfo(source_dtype).max)
    return (
        int(np.iinfo(target_dtype).max) + 1.0 - _LESS_THAN_ONE if is_float(source_dtype) else None
    )


def convert_scaled(
    node: DataNode, source_dtype: str, target_dtype: str, factor: DataNode | float
) -> DataNode:
    """Convert a node of dtype `source_dtype` to dtype `target_dtype`, with scaling.

    Integers become floats in 0..1: the maximum of the integer dtype becomes 1. Floats in 0..1
    become integers from 0 to that maximum. Between two integer dtypes, bits are shifted.

    Args:
        node: The input.
        source_dtype: The dtype of the input.
        target_dtype: The dtype of the output.
        factor: The number that `scale_factor` returns, or a DataNode of it.
    """
    if target_dtype == "float16":  # torchvision rounds before it multiplies, and again after
        return cast(_as_float32(cast(node, "float16"), "float16") * factor, "float16")
    if is_float(target_dtype):
        return cast(node, target_dtype) * factor
    if is_float(source_dtype):
        return convert(node * factor, source_dtype, target_dtype)
    bits = [int(np.iinfo(dtype).max).bit_length() for dtype in (source_dtype, target_dtype)]
    if bits[0] < bits[1]:
        return _shift(cast(node, target_dtype), target_dtype, bits[1] - bits[0])
    return cast(_shift(node, source_dtype, bits[1] - bits[0]), target_dtype)


def _as_float32(node: DataNode, dtype: str) -> DataNode:
    """Cast float16 to float32, since DALI's arithmetic does not support float16."""
    return cast(node, "float32") if dtype == "float16" else node


def _truncate(node: DataNode) -> DataNode:
    zero = np.float32(0.0)
    return dali_math.floor(dali_math.max(node, zero)) + dali_math.ceil(dali_math.min(node, zero))


def _shift(node: DataNode, dtype: str, bits: int) -> DataNode:
    """Shift the numbers of a node of `dtype` to the left, or to the right if `bits` is negative."""
    while bits:
        count = min(abs(bits), _BITS_AT_ONCE)
        unit, rest = (types.Constant(n, dali_type(dtype)) for n in (1 << count, (1 << count) - 1))
        node = cast(node * unit if bits > 0 else (node - (node & rest)) // unit, dtype)
        bits += -count if bits > 0 else count
    return node


def find_refused_dtype(message: str) -> str:
    """Return the line of DALI's error `message` that says that an operator refuses a dtype, or "".

    Also return "" if an operator that reads files refuses it: then only one file is to blame.
    """
    line = find_cause(message)
    reads_files = any(operator in message for operator in _FILE_OPERATORS)
    return line if _REFUSED_DTYPE.search(line) and not reads_files else ""
