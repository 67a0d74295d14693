"""Fields of shards whose samples are .npy files: their settings, and where the numbers are."""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import pydantic
from pydantic import Field

from gpupipe.dataset.layout import explain_wrong_layout
from gpupipe.dataset.shards import ByteRanges, Dtype
from gpupipe.errors import shown
from gpupipe.formats import npy
from gpupipe.schema.field_types import WHOLE

Shape = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**31), WHOLE] | None, ...],
    Field(min_length=1, max_length=8),
]


class ArrayFormat(pydantic.BaseModel):
    """What all arrays of a field have in common.

    Attributes:
        dtype: Dtype that the array of every sample must have.
        shape: Shape that the array of every sample must have, with null for an axis along which
            samples may differ. By default all axes may.
        layout: A letter for each axis, such as HWC. By default L, HW, CHW or CDHW.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    dtype: Dtype
    shape: Shape | None = None
    layout: str | None = None

    @pydantic.field_validator("layout")
    @classmethod
    def _is_a_layout(cls, layout: str | None, info: pydantic.ValidationInfo) -> str | None:
        shape = info.data.get("shape")
        if layout is not None and (wrong := explain_wrong_layout(layout, shape and len(shape))):
            raise ValueError(wrong)
        return layout


def read_header(name: str, content: Any) -> npy.NpyHeader:
    """Parse the header of an array.

    Args:
        name: The name of the array, for messages.
        content: The bytes of the .npy file.

    Raises:
        ValueError: The array is not whole, has no numbers, or is not supported.
    """
    data = memoryview(content)
    try:
        header = npy.parse_header(data[: npy.MAX_HEADER].tobytes())
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from e
    if header.offset + header.length != len(data):
        raise ValueError(
            f"{name}: {len(data):,} bytes, but its header tells of "
            f"{header.offset + header.length:,}: the array is not whole"
        )
    if not header.length:
        raise ValueError(f"{name}: an array without numbers, of shape {shown(header.shape)}")
    return header


def locate_arrays(
    names: Sequence[str],
    begins: Sequence[int],
    headers: Sequence[npy.NpyHeader],
    expected: ArrayFormat | None,
) -> ByteRanges:
    """Return where the numbers of arrays are in a file.

    Args:
        names: The name of each array, for messages.
        begins: The offset of each .npy file.
        headers: The header of each.
        expected: The dtype and the shape that they must have; None if there is none.

    Raises:
        ValueError: They differ in dtype or number of axes, or are not as expected.
    """
    for name, header in zip(names, headers, strict=True):
        dtype = headers[0].dtype if expected is None else expected.dtype
        if header.dtype != dtype:
            fault = f"{header.dtype}, where {dtype} was expected: all must have one dtype"
        elif expected is not None and not _fits(expected.shape, header.shape):
            shapes = f"{shown(header.shape)}, where {shown(expected.shape)} was expected"
            fault = f"shape {shapes}: see data.fields"
        elif len(header.shape) != len(headers[0].shape):
            other = f"{names[0]} has {shown(headers[0].shape)}"
            fault = f"shape {shown(header.shape)}, but {other}"
        else:
            continue
        raise ValueError(f"{name}: an array of {fault}")
    num_axes = len(headers[0].shape) if headers else 0
    return ByteRanges(
        np.array(begins, np.int64) + np.array([h.offset for h in headers], np.int64),
        np.array([h.length for h in headers], np.int64),
        headers[0].dtype if headers else "",
        np.array([h.shape for h in headers], np.int64).reshape(len(headers), num_axes),
    )


def _fits(expected: tuple[int | None, ...] | None, shape: tuple[int, ...]) -> bool:
    """Return whether an array has the expected size along each axis; None stands for any size."""
    return expected is None or (
        len(expected) == len(shape)
        and all(size in (None, n) for size, n in zip(expected, shape, strict=True))
    )
