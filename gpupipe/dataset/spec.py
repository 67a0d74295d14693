"""What flows between two steps: encoded bytes, or numbers of a dtype whose axes have names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

FLOATS = ("float16", "float32", "bfloat16")
PAIR = "P"
"""The axis of length 2 that stands for a complex number: its real part, its imaginary part."""
SPACES = ("DHW", "HW", "L")
_DEFAULTS = ("", "L", "HW", "CHW", "CDHW")
_FURTHER = "ABEFGIJKMNOQRSTUVXYZ"
_NAMES = {"C": "channels", "D": "depth", "H": "height", "W": "width", "L": "length"}

Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class Spec:
    """One sample of one field.

    `height`, `width`, `channels`, `depth` and `length` are None where they differ from sample to
    sample, or there is no such axis. `at_least` is the least size that is certain along the axes of
    space. `encoded` means the bytes of an image file. A decoded image has layout HWC in DALI.

    layout: a letter an axis, in the order of the array that is delivered: C channels, D, H, W
    depth, height and width, L the length of a series, P a complex number's two parts; any other
    letter is an axis that steps leave alone, whose size is in `others`, in the order of `layout`.
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

    def __str__(self) -> str:
        if self.encoded:
            return "encoded bytes"
        return f"{_written(self.shape)} {self.dtype}"

    @classmethod
    def of_array(cls, dtype: str, shape: Sequence[int | None], layout: str) -> Spec:
        """Of arrays of a shape; None: that axis differs from sample to sample.

        Raises ValueError where `layout` is not one of as many axes.
        """
        if wrong := wrong_layout(layout, len(shape)):
            raise ValueError(wrong)
        named = {_NAMES[axis]: n for axis, n in zip(layout, shape, strict=True) if axis in _NAMES}
        others = tuple(n for axis, n in zip(layout, shape, strict=True) if axis not in _NAMES)
        least = tuple(
            n or 1 for axis, n in zip(layout, shape, strict=True) if axis in space(layout)
        )
        return cls(False, dtype=dtype, at_least=least, layout=layout, others=others, **named)

    @property
    def space(self) -> str:
        """The axes of space: "DHW", "HW", "L" or ""."""
        return space(self.layout)

    @property
    def size(self) -> tuple[int, ...] | None:
        """Along the axes of space, [height, width] of an image, where every sample has the same,
        else None.
        """
        sizes = tuple(n for n in self.sides if n is not None)
        return sizes if len(sizes) == len(self.space) else None

    @property
    def sides(self) -> Sizes:
        """The same, with None for each axis along which they differ."""
        return self._sizes(self.space)

    @property
    def shape(self) -> Sizes:
        """In the order of `layout`."""
        return self._sizes(self.layout)

    @property
    def canonical_sizes(self) -> Sizes:
        """In the order of `canonical`."""
        return self._sizes_in(canonical(self.layout))

    def differs(self, tensor: Any, sizes: Sizes) -> str:
        """How a tensor, its axes in the order of `canonical`, is not what this says; or "".

        sizes: its own `canonical_sizes`, which take longer to find than to compare.
        """
        shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
        if shape is None or dtype is None:
            return f"a {type(tensor).__name__}, but should be a tensor"
        name = str(dtype).removeprefix("torch.")
        if self.encoded or (name == self.dtype and _fits(shape, sizes)):
            return ""
        return self.differs_in(tuple(shape), name, canonical(self.layout))

    def differs_in(self, shape: tuple[int, ...], dtype: str, axes: str) -> str:
        """The same of a shape, in the order of `axes`, and a dtype."""
        sizes = self._sizes_in(axes)
        if dtype == self.dtype and _fits(shape, sizes):
            return ""
        return (
            f"{_written(shape)} {dtype}, but its spec says {_written(sizes)} {self.dtype} ({axes})"
        )

    def _sizes_in(self, axes: str) -> Sizes:
        """In an order in which there is always an axis of channels."""
        sizes = self._sizes(axes)
        return tuple(
            1 if a == "C" not in self.layout else n for a, n in zip(axes, sizes, strict=True)
        )

    def sized(self, size: Sequence[int | None], at_least: tuple[int, ...] | None = None) -> Spec:
        """The same with another size along the axes of space; at_least: by default that size."""
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


def space(layout: str) -> str:
    """The axes of space in a layout."""
    return "".join(axis for axis in layout if axis in "DHWL")


def canonical(layout: str) -> str:
    """The order of axes in which steps get a tensor in torch: other axes, channels, space.

    There is always an axis of channels, of length 1 perhaps.
    """
    others = "".join(axis for axis in layout if axis not in _NAMES)
    return f"{others}C{space(layout)}"


def default_layout(axes: int) -> str:
    """Of arrays with so many axes: L, HW, CHW, CDHW; where there are more, all are axes that steps
    leave alone.
    """
    return _DEFAULTS[axes] if axes < len(_DEFAULTS) else _FURTHER[:axes]


def wrong_layout(layout: str, axes: int | None = None) -> str:
    """What is wrong with a layout, of arrays with so many axes, or ""."""
    if not all("A" <= axis <= "Z" for axis in layout) or len(set(layout)) < len(layout):
        return (
            f"layout is {layout!r}, but should be a letter from A to Z for each axis, each "
            "another, such as CHW"
        )
    found = space(layout)
    if found and (found not in SPACES or found not in layout):
        return (
            f"layout is {layout!r}, but the axes of space should be HW, DHW or L, in this order "
            "and next to each other"
        )
    if axes is not None and len(layout) != axes:
        return f"layout is {layout!r}, for {len(layout)} axes, but the arrays have {axes}"
    return ""
