"""What is passed in place of an array to a function of the extensions, which has to refuse it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OTHERS = {
    "uint8": ("int8", "uint16", "float64"),
    "int32": ("uint32", "int64", "float32", ">i4"),
    "int64": ("uint64", "int32", "float64", ">i8"),
    "uint64": ("int64", "uint32", "float64", ">u8"),
    "float32": ("int32", "float16", "float64", ">f4"),
    "float64": ("int64", "float32", "complex64", ">f8"),
}
_MANY_ROWS = 2**59
"""So many rows without values: the number of bytes of eight such columns does not fit 64 bits."""


def draw_wrong(rng: np.random.Generator, array: NDArray[Any]) -> Any:
    """Return no array at all, or one of another dtype or form than the given one.

    A function has to refuse each for its dtype, its number of axes, its gaps or its alignment.
    """
    kinds = [_draw_object, _change_dtype, _drop_axes, _have_many_rows]
    if len(array) > 1 and array.size:
        kinds.append(_space_out)
    if array.size and array.itemsize > 1:
        kinds.append(misalign)
    return kinds[int(rng.integers(len(kinds)))](rng, array)


def is_refused(
    function: Callable[..., Any],
    *arguments: Any,
    errors: tuple[type[Exception], ...] = (TypeError, ValueError, BufferError, OverflowError),
) -> bool:
    """Return whether a call raises what a wrong argument raises."""
    try:
        function(*arguments)
    except errors:
        return True
    return False


def _draw_object(rng: np.random.Generator, array: NDArray[Any]) -> Any:
    objects = (3, "text", 2.5, [1, 2], object(), array.tolist(), type(array))
    return objects[int(rng.integers(len(objects)))]


def _change_dtype(rng: np.random.Generator, array: NDArray[Any]) -> Any:
    dtype = str(rng.choice(_OTHERS[array.dtype.name]))
    return np.zeros(array.shape if array.size else 3, dtype)


def _drop_axes(rng: np.random.Generator, array: NDArray[Any]) -> Any:
    return np.zeros((), array.dtype)


def _have_many_rows(rng: np.random.Generator, array: NDArray[Any]) -> Any:
    return np.empty((_MANY_ROWS, 0), array.dtype)


def _space_out(rng: np.random.Generator, array: NDArray[Any]) -> Any:
    return np.repeat(array, 2, 0)[::2] if rng.integers(2) else array[::-1]


def misalign(rng: np.random.Generator, array: NDArray[Any]) -> Any:
    """Return a buffer whose values are not aligned, which its format does not say.

    That of a NumPy array says it.
    """
    offset = int(rng.integers(1, array.itemsize))
    room = bytearray(array.nbytes + offset)
    flat = memoryview(room)[offset:]
    flat[:] = array.tobytes()
    return flat.cast(array.dtype.char, array.shape)
