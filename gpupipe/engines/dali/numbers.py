"""Number types in DALI, as steps/to_dtype.py has them: floats are truncated, and what an integer
type cannot hold becomes the nearest that it can.

DALI's own cast also takes the nearest that fits, makes NaN 0, but rounds floats. It knows no shift
of bits: but n // 2**k, which truncates, of numbers whose last k bits are 0. On a CPU its float16 of
a number half-way between two is the larger one, and not the even one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali import math as dali_math

from gpupipe.pipeline import dtypes

_LESS_THAN_ONE = 1e-3
"""As in steps/to_dtype.py."""
_BITS_AT_ONCE = 14
"""2**14 is a constant of every integer dtype but those of 8 bits, which are never shifted by more
than a bit.
"""


def dali_type(dtype: str) -> Any:
    """DALI's name of a dtype."""
    return types.to_dali_type(dtype)


def through(operator: str, node: Any, dtype: str, make: Callable[[Any], Any]) -> Any:
    """What an operator of this name, `make`, makes of numbers of `dtype`; in the same dtype,
    whether it takes that or not.
    """
    handed = dtypes.handed(operator, dtype)
    if handed is None or handed.dtype == dtype:
        return make(node)
    own, other = dali_type(dtype), dali_type(handed.dtype)
    if handed.by == "bits":
        return fn.reinterpret(make(fn.reinterpret(node, dtype=other)), dtype=own)
    return fn.cast(make(fn.cast(node, dtype=other)), dtype=own)


def for_torch(node: Any, dtype: str) -> Any:
    """The same numbers in a dtype in which DALI hands them to torch: see dtypes.as_integers."""
    other = dtypes.as_integers(dtype)
    return node if other == dtype else fn.reinterpret(node, dtype=dali_type(other))


def is_float(dtype: str) -> bool:
    """Of an array: there is no bfloat16 in DALI."""
    return dtype.startswith("float")


def converted(node: Any, given: str, made: str) -> Any:
    """Numbers of dtype `given` as `made`, not scaled."""
    if made == "bool":
        return node if given == "bool" else _as_float32(node, given) != 0
    if is_float(given) and not is_float(made):
        node = _truncated(_as_float32(node, given))
    return fn.cast(node, dtype=dali_type(made))


def factor(given: str, made: str) -> float | None:
    """What `scaled` multiplies by; None between integers."""
    if is_float(made):
        return 1.0 / int(np.iinfo(given).max)
    return int(np.iinfo(made).max) + 1.0 - _LESS_THAN_ONE if is_float(given) else None


def scaled(node: Any, given: str, made: str, factor: Any) -> Any:
    """The same, the range of integers mapped to 0..1, and back; bits are shifted between integers.

    factor: a number, or a DataNode.
    """
    if is_float(made):
        return _to_unit(node, made, factor)
    if is_float(given):
        return converted(node * factor, given, made)
    shift = _bits(made) - _bits(given)
    if shift <= 0:
        return fn.cast(_shifted_down(node, given, -shift), dtype=dali_type(made))
    return _shifted_up(fn.cast(node, dtype=dali_type(made)), made, shift)


def _to_unit(node: Any, made: str, factor: Any) -> Any:
    if made == "float16":  # torchvision rounds to float16 twice: before it multiplies, too
        return fn.cast(
            _as_float32(fn.cast(node, dtype=types.FLOAT16), made) * factor, dtype=types.FLOAT16
        )
    return fn.cast(node, dtype=dali_type(made)) * factor


def _as_float32(node: Any, given: str) -> Any:
    """DALI does not calculate with float16."""
    return fn.cast(node, dtype=types.FLOAT) if given == "float16" else node


def _truncated(node: Any) -> Any:
    zero = np.float32(0.0)
    return dali_math.floor(dali_math.max(node, zero)) + dali_math.ceil(dali_math.min(node, zero))


def _bits(dtype: str) -> int:
    return int(np.iinfo(dtype).max).bit_length()


def _shifted_down(node: Any, dtype: str, bits: int) -> Any:
    while bits:
        some = min(bits, _BITS_AT_ONCE)
        node = (node - (node & _integer((1 << some) - 1, dtype))) // _integer(1 << some, dtype)
        node = fn.cast(node, dtype=dali_type(dtype))
        bits -= some
    return node


def _shifted_up(node: Any, dtype: str, bits: int) -> Any:
    while bits:
        some = min(bits, _BITS_AT_ONCE)
        node = fn.cast(node * _integer(1 << some, dtype), dtype=dali_type(dtype))
        bits -= some
    return node


def _integer(value: int, dtype: str) -> Any:
    return types.Constant(value, dali_type(dtype))
