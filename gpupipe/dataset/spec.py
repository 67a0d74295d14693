"""Spec: the type of a field between two steps, with dtype, layout and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

FLOATS = ("float16", "float32", "bfloat16")
PAIR = "P"
"""The axis of length 2 that holds a complex number: its real part, then its imaginary part."""
SPACES = ("DHW", "HW", "L")
_DEFAULTS = ("", "L", "HW", "CHW", "CDHW")
_FURTHER = "ABEFGIJKMNOQRSTUVXYZ"
_NAMES = {"C": "channels", "D": "depth", "H": "height", "W": "width", "L": "length"}

Kind = Literal["image", "mask", "array"]
"""What a field is, by which steps decide what they do to it. The numbers of a mask are classes."""
Sizes = tuple[int | None, ...]
Values = Literal["usual", "unscaled", "filled", "normalized"]


@dataclass(frozen=True)
class Spec:
    """The type of one sample of one field.

    A size is None if it differs between samples. Sizes of axes that `layout` lacks are None, too.
    The spatial axes are D, H, W and L. In DALI, a decoded image has the layout HWC.

    Attributes:
        encoded: Whether the sample is the bytes of an image file, not yet decoded.
        height: Size of the axis H.
        width: Size of the axis W.
        channels: Size of the axis C.
        dtype: NumPy's or torch's name of the dtype, such as "uint8".
        at_least: A lower bound of the size along each spatial axis, in the order of `layout`.
        layout: One letter for each axis, in the order of the delivered array: C for channels; D,
            H and W for depth, height and width; L for the length of a series; P for the two parts
            of a complex number. Steps leave axes of any other letter alone.
        depth: Size of the axis D.
        length: Size of the axis L.
        others: Sizes of all other axes, P included, in the order of `layout`.
        values: "usual" if the numbers span the usual range of the dtype: all of an integer dtype,
            or 0 to 1 for floats. Fields of image files and arrays begin so. "unscaled" for floats
            that were made of integers without scaling, "filled" for floats with a fill outside 0
            to 1, "normalized" after a mean was subtracted.
        kind: What the field is. The source says it, and no step changes it.
    """

    encoded: bool = True
    height: int | None = None
    width: int | None = None
    channels: int | None = None
    dtype: str = "uint8"
    at_least: tuple[int, ...] = (1, 1)
    layout: str = "CHW"
    depth: int | None = None
    length: int | None = None
    others: Sizes = ()
    values: Values = "usual"
    kind: Kind = "image"

    def __str__(self) -> str:
        if self.encoded:
            return "encoded bytes"
        return f"{_written(self.shape)} {self.dtype}"

    @classmethod
    def of_array(cls, dtype: str, shape: Sequence[int | None], layout: str) -> Spec:
        """Return the spec of arrays.

        Args:
            dtype: NumPy's name of the dtype.
            shape: The size of each axis; None if it differs between samples.
            layout: One letter for each axis.

        Raises:
            ValueError: `layout` is not valid, or has another number of axes than `shape`.
        """
        if wrong := explain_wrong_layout(layout, len(shape)):
            raise ValueError(wrong)
        named: dict[str, Any] = {
            _NAMES[axis]: n for axis, n in zip(layout, shape, strict=True) if axis in _NAMES
        }
        others = tuple(n for axis, n in zip(layout, shape, strict=True) if axis not in _NAMES)
        least = tuple(
            n or 1 for axis, n in zip(layout, shape, strict=True) if axis in spatial_axes(layout)
        )
        return cls(
            False, dtype=dtype, at_least=least, layout=layout, others=others, kind="array", **named
        )

    @property
    def space(self) -> str:
        """The spatial axes: "DHW", "HW", "L" or ""."""
        return spatial_axes(self.layout)

    @property
    def size(self) -> tuple[int, ...] | None:
        """The sizes along the spatial axes, (height, width) of an image; None if samples differ."""
        sizes = tuple(n for n in self.sides if n is not None)
        return sizes if len(sizes) == len(self.space) else None

    @property
    def sides(self) -> Sizes:
        """The sizes along the spatial axes, with None for each axis along which samples differ."""
        return self._sizes(self.space)

    @property
    def shape(self) -> Sizes:
        """The sizes of all axes, in the order of `layout`."""
        return self._sizes(self.layout)

    @property
    def canonical_sizes(self) -> Sizes:
        """The sizes in the order of `canonical_layout`, with 1 for a missing axis of channels."""
        return self._sizes_in(canonical_layout(self.layout))

    def describe_mismatch(self, tensor: Any, sizes: Sizes) -> str:
        """Say how a tensor differs from this spec; "" if it does not.

        Args:
            tensor: A tensor with its axes in the order of `canonical_layout`.
            sizes: `self.canonical_sizes`. The caller keeps them: they take longer to compute than
                to compare.
        """
        shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
        if shape is None or dtype is None:
            return f"a {type(tensor).__name__}, but should be a tensor"
        name = str(dtype).removeprefix("torch.")
        if self.encoded or (name == self.dtype and _fits(shape, sizes)):
            return ""
        return self.describe_mismatch_in(tuple(shape), name, canonical_layout(self.layout))

    def describe_mismatch_in(self, shape: tuple[int, ...], dtype: str, axes: str) -> str:
        """The same as `describe_mismatch`, for a dtype and a shape in the order of `axes`."""
        sizes = self._sizes_in(axes)
        if dtype == self.dtype and _fits(shape, sizes):
            return ""
        return (
            f"{_written(shape)} {dtype}, but its spec says {_written(sizes)} {self.dtype} ({axes})"
        )

    def _sizes_in(self, axes: str) -> Sizes:
        """The sizes in the order of `axes`, with 1 for a missing axis of channels."""
        sizes = self._sizes(axes)
        return tuple(
            1 if a == "C" not in self.layout else n for a, n in zip(axes, sizes, strict=True)
        )

    def with_size(
        self, size: Sequence[int | None], at_least: tuple[int, ...] | None = None
    ) -> Spec:
        """Return a copy with another size along the spatial axes.

        Args:
            size: The size of each spatial axis; None if it differs between samples.
            at_least: The lower bound of each; by default `size`, with 1 for None.
        """
        named: dict[str, Any] = {_NAMES[axis]: n for axis, n in zip(self.space, size, strict=True)}
        return replace(
            self, at_least=tuple(n or 1 for n in size) if at_least is None else at_least, **named
        )

    def _sizes(self, axes: str) -> Sizes:
        others = iter(self.others)
        return tuple(
            getattr(self, _NAMES[axis]) if axis in _NAMES else next(others) for axis in axes
        )


def _fits(shape: Sequence[int], sizes: Sizes) -> bool:
    same_axes = len(shape) == len(sizes)
    return same_axes and all(size in (None, n) for n, size in zip(shape, sizes, strict=True))


def _written(sizes: Sizes) -> str:
    return f"({', '.join('?' if n is None else str(n) for n in sizes)})"


def spatial_axes(layout: str) -> str:
    """Return the spatial axes of a layout."""
    return "".join(axis for axis in layout if axis in "DHWL")


def canonical_layout(layout: str) -> str:
    """Return the order of axes in which steps get a torch tensor: other, channels, spatial.

    There is always an axis of channels. Its length is 1 if the layout has none.
    """
    others = "".join(axis for axis in layout if axis not in _NAMES)
    return f"{others}C{spatial_axes(layout)}"


def default_layout(axes: int) -> str:
    """Return the default layout of arrays: "", L, HW, CHW or CDHW for 0 to 4 axes.

    Steps leave all axes alone if there are more.
    """
    return _DEFAULTS[axes] if axes < len(_DEFAULTS) else _FURTHER[:axes]


def explain_wrong_layout(layout: str, axes: int | None = None) -> str:
    """Say what is wrong with a layout for arrays with `axes` axes; "" if nothing is."""
    if not all("A" <= axis <= "Z" for axis in layout) or len(set(layout)) < len(layout):
        return (
            f"layout is {layout!r}, but should be a letter from A to Z for each axis, each "
            "another, such as CHW"
        )
    spatial = spatial_axes(layout)
    if spatial and (spatial not in SPACES or spatial not in layout):
        return (
            f"layout is {layout!r}, but the axes of space should be HW, DHW or L, in this order "
            "and next to each other"
        )
    if axes is not None and len(layout) != axes:
        return f"layout is {layout!r}, for {len(layout)} axes, but the arrays have {axes}"
    return ""
