"""The specs of fields of arrays: their dtype, the sizes of their axes, and their layout."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

from gpupipe.dataset.index import Index
from gpupipe.dataset.layout import default_layout, explain_wrong_layout
from gpupipe.dataset.spec import PAIR, Spec
from gpupipe.errors import DataError


def _check_layout(layout: str) -> str:
    if wrong := explain_wrong_layout(layout):
        raise ValueError(wrong)
    if PAIR in layout and not layout.endswith(PAIR):
        raise ValueError(
            f"layout is {layout!r}, but {PAIR}, the real and the imaginary part, should be "
            "its last axis"
        )
    return layout


Layout = Annotated[str, AfterValidator(_check_layout)]


def build_array_spec(index: Index, field: str, layout: str | None, pairs: bool) -> Spec:
    """Return the spec of a field of arrays.

    Args:
        index: The samples.
        field: The field, whose column has an ArrayLayout.
        layout: The option `layout`; None for the default of the number of axes.
        pairs: Whether the arrays are pairs of the parts of complex numbers.

    Raises:
        DataError: The arrays have another number of axes than `layout`.
    """
    array = index.columns[field].array
    assert array is not None
    shape = array.shape if array.shapes is None else _find_common_shape(array.shapes)
    assert shape is not None
    letters = (
        default_layout(len(shape) - pairs)
        if layout is None
        else layout.removesuffix(PAIR if pairs else "")
    )
    try:
        return Spec.of_array(array.dtype, shape, letters + PAIR * pairs)
    except ValueError as e:
        raise DataError(
            f"data.layout: {e} ({', '.join('?' if n is None else str(n) for n in shape)}), as in "
            f"{index.location(0)}"
        ) from e


def _find_common_shape(shapes: NDArray[np.int64]) -> tuple[int | None, ...]:
    """Return the length of each axis; None for an axis whose length differs between samples."""
    same = (shapes == shapes[0]).all(0)
    return tuple(int(n) if equal else None for n, equal in zip(shapes[0], same, strict=True))
