"""Arrays of numbers as a parameter of a step: a nested list, or the path of an .npy file.

The numbers are read when the config is checked. The pipeline's fingerprint includes their hash, and
not the path: if the file's numbers change, so does the fingerprint.
"""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, InstanceOf, PlainSerializer, SerializationInfo, WithJsonSchema

from gpupipe.errors import shown
from gpupipe.runtime.files import open_regular
from gpupipe.schema.field_types import expand_home, should_be

_DTYPES = ("float32", "float64")


@dataclass(frozen=True, repr=False)
class NumberArray:
    """An array of float32 or float64 numbers. Arrays of equal dtype, shape and numbers are equal.

    Attributes:
        dtype: NumPy's name of the dtype.
        shape: The length of each axis.
        digest: A hash of the numbers.
        path: The file of the numbers; "" if they come from a list.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str
    _values: NDArray[Any] | None = field(compare=False)
    path: str = field(default="", compare=False)

    @classmethod
    def of_values(cls, values: NDArray[Any], path: str = "") -> "NumberArray":
        """Return a NumberArray of `values`.

        The caller must ensure that the values are finite, and float32 or float64.
        """
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
        digest = hashlib.blake2b(values.tobytes(), digest_size=16).hexdigest()
        return cls(values.dtype.name, values.shape, digest, values, path)

    @property
    def values(self) -> NDArray[Any]:
        """The numbers, as a NumPy array.

        Raises:
            LookupError: This is a client's copy without numbers: only the server has them.
        """
        if self._values is None:
            raise LookupError("the numbers of this array are on the server")
        return self._values

    def __repr__(self) -> str:
        return self.path or f"{'x'.join(map(str, self.shape))} {self.dtype}"


def _read(value: Any, ndim: int) -> NumberArray:
    if isinstance(value, NumberArray):
        return value
    if _is_description(value, ndim):
        return NumberArray(value["dtype"], tuple(value["shape"]), value["hash"], None)
    kind = "a list of numbers" if ndim == 1 else "a list of rows, each a list of numbers"
    rule = f"{kind}, or the path of an .npy file"
    if isinstance(value, (str, Path)) and str(value).endswith(".npy"):
        return NumberArray.of_values(_check(_load(Path(value)), ndim), str(value))
    if not isinstance(value, (list, tuple)):
        raise should_be(rule)
    try:
        array = np.array(value)
    except ValueError:  # rows of different lengths
        raise should_be(f"{rule}; the rows have different lengths") from None
    if array.ndim != ndim or array.dtype.kind not in "iuf":
        raise should_be(rule)
    with np.errstate(over="ignore"):
        return NumberArray.of_values(_check(array.astype(np.float32), ndim))


def _is_description(value: Any, ndim: int) -> bool:
    """Return whether a value is the JSON of a NumberArray: its dtype, shape and hash."""
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "hash"}:
        return False
    shape = value["shape"]
    is_shape = isinstance(shape, (list, tuple)) and all(isinstance(n, int) for n in shape)
    is_text = isinstance(value["hash"], str) and value["dtype"] in _DTYPES
    return is_shape and is_text and len(shape) == ndim


def _load(path: Path) -> NDArray[Any]:
    """Return the array in an .npy file; raise ValueError if it cannot be read."""
    try:
        with open_regular(expand_home(path)) as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as e:
        raise ValueError(f"{path} cannot be read: {e.strerror}") from None
    except (EOFError, ValueError) as e:
        raise ValueError(f"{path} is no .npy file of numbers: {e}") from None
    return array


def _check(array: NDArray[Any], ndim: int) -> NDArray[Any]:
    """Return `array`; raise ValueError unless it has `ndim` axes and only finite floats."""
    if array.dtype.name not in _DTYPES:
        raise ValueError(
            f"the numbers are {array.dtype}, but should be {' or '.join(_DTYPES)}: save them with "
            "array.astype('float32')"
        )
    if array.ndim != ndim or not array.size:
        raise ValueError(f"the array has the shape {list(array.shape)}, but needs {ndim} axes")
    if not np.isfinite(array).all():
        position = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"the number at {shown(position)} is not finite in float32 or float64")
    return array


def _serialize(array: NumberArray, info: SerializationInfo) -> Any:
    """Return the value for YAML: a path or a list.

    In JSON mode, for fingerprints and clients of a server, return the dtype, shape and hash.
    """
    if info.mode == "json":
        return {"dtype": array.dtype, "shape": list(array.shape), "hash": array.digest}
    return array.path or array.values.tolist()


def _json_schema(item: dict[str, Any]) -> WithJsonSchema:
    path = {"type": "string", "pattern": r"\.npy$|\$\{"}
    return WithJsonSchema({"anyOf": [{"type": "array", "items": item}, path]}, mode="validation")


Vector = Annotated[
    InstanceOf[NumberArray],
    BeforeValidator(lambda value: _read(value, 1)),
    PlainSerializer(_serialize),
    _json_schema({"type": "number"}),
]
"""A list of numbers, or the path of an .npy file with one axis."""
Matrix = Annotated[
    InstanceOf[NumberArray],
    BeforeValidator(lambda value: _read(value, 2)),
    PlainSerializer(_serialize),
    _json_schema({"type": "array", "items": {"type": "number"}}),
]
"""A list of rows, or the path of an .npy file with two axes."""
