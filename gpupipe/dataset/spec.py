"""Spec: the type of a field between two steps: shape, dtype, layout, kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from gpupipe.dataset.layout import KNOWN_AXES, canonical_layout, explain_wrong_layout, spatial_axes

FLOATS = ("float16", "float32", "bfloat16")
ENCODED = "bytes"
"""The dtype of image files that are not decoded yet."""
PAIR = "P"
"""The axis of length 2 that holds a complex number: its real part, then its imaginary part."""

Kind = Literal["image", "mask", "array", "boxes", "points"]
"""The kind of a field. Steps may treat each kind differently.

A mask holds class numbers. Boxes and points are coordinates on the canvas of an image.
"""
Sizes = tuple[int | None, ...]
Values = Literal["usual", "unscaled", "filled", "normalized"]


@dataclass(frozen=True)
class Pixels:
    """The value range and the minimum size of a field; part of its Spec.

    Attributes:
        values: The range of the numbers. "usual": the whole range of an integer dtype, or 0 to 1
            for floats; every source delivers this. "unscaled": floats converted from integers
            without scaling. "filled": floats with a fill value outside 0 to 1. "normalized": a
            mean was subtracted.
        at_least: The minimum size along each spatial axis. () means the default: the size itself,
            or 1 for a size that differs between samples.
    """

    values: Values = "usual"
    at_least: tuple[int, ...] = ()


@dataclass(frozen=True)
class Annotation:
    """What a field of annotations belongs to; part of its Spec.

    Attributes:
        of: The field of the image whose canvas the coordinates follow.
        rows_with: The field that has a row for each row of this one, and loses the same rows. ""
            if this field has rows of its own.
        visibility_of: The field of points whose visibility this field holds, (N, K): 0 where a
            point is outside the canvas. "" for any other field.
        flip_pairs: Pairs of positions 0 to K - 1 of points that a horizontal flip swaps, such as
            the left and the right eye.
    """

    of: str
    rows_with: str = ""
    visibility_of: str = ""
    flip_pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Spec:
    """The type of one sample of one field.

    `Spec()` is an image file that is not decoded yet. A decoded image has the layout CHW here,
    whichever layout the engine computes in. The spatial axes are D, H, W and L.

    Attributes:
        shape: The size of each axis, in the order of `layout`; None if it differs between samples.
        dtype: NumPy's or torch's name of the dtype, such as "uint8"; "bytes" for encoded bytes.
        layout: One letter for each axis, in the order of the delivered array: C for channels; D,
            H and W for depth, height and width; L for the length of a series; P for the two parts
            of a complex number. Steps leave axes of any other letter alone.
        kind: Whether the field is an image, mask, array, boxes or points. The source sets it; no
            step changes it.
        pixels: The range of the pixels or of the array's numbers, and the minimum size.
        annotation: What the field belongs to, if it has any number of rows in each sample: boxes,
            points, and the numbers that go with them. None for a field that has one value a sample.
    """

    shape: Sizes = ()
    dtype: str = ENCODED
    layout: str = ""
    kind: Kind = "image"
    pixels: Pixels = Pixels()
    annotation: Annotation | None = None

    def __str__(self) -> str:
        return "encoded bytes" if self.encoded else f"{_show(self.shape)} {self.dtype}"

    @classmethod
    def of_image(
        cls,
        channels: int | None,
        height: int | None = None,
        width: int | None = None,
        dtype: str = "uint8",
    ) -> "Spec":
        """Return the spec of decoded images, in layout CHW.

        Pass None for a size that differs between samples.
        """
        return cls((channels, height, width), dtype, "CHW")

    @classmethod
    def of_array(cls, dtype: str, shape: Sequence[int | None], layout: str) -> "Spec":
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
        return cls(tuple(shape), dtype, layout, "array")

    @classmethod
    def of_boxes(cls, of: str = "image", rows_with: str = "") -> "Spec":
        """Return the spec of boxes, float32 (N, 4): [left, top, right, bottom] in pixels.

        Args:
            of: The field of the image that the boxes are on.
            rows_with: Another field of annotations with which they share rows.
        """
        return cls((None, 4), "float32", "NK", "boxes", annotation=Annotation(of, rows_with))

    @classmethod
    def of_points(
        cls,
        of: str = "image",
        rows_with: str = "",
        count: int | None = None,
        flip_pairs: Sequence[tuple[int, int]] = (),
    ) -> "Spec":
        """Return the spec of points, float32 (N, K, 2): [x, y] in pixels.

        Args:
            of: The field of the image that the points are on.
            rows_with: Another field of annotations with which they share rows, such as "boxes".
            count: The number K of points in a row; None if only the index knows it.
            flip_pairs: Pairs of positions of points that a horizontal flip swaps.
        """
        annotation = Annotation(of, rows_with, flip_pairs=tuple(flip_pairs))
        return cls((None, count, 2), "float32", "NKX", "points", annotation=annotation)

    @classmethod
    def of_rows(
        cls,
        dtype: str,
        of: str = "image",
        rows_with: str = "",
        shape: Sequence[int | None] = (),
        visibility_of: str = "",
    ) -> "Spec":
        """Return the spec of numbers that annotations have, (N, ...), such as labels (N,).

        Args:
            dtype: NumPy's name of the dtype.
            of: The field of the image that they belong to.
            rows_with: The field whose rows they describe, such as "boxes".
            shape: The shape of one row.
            visibility_of: The field of points whose visibility they are.
        """
        annotation = Annotation(of, rows_with, visibility_of)
        layout = "NKX"[: 1 + len(shape)]
        return cls((None, *shape), dtype, layout, "array", annotation=annotation)

    @property
    def encoded(self) -> bool:
        """Whether the sample is the bytes of an image file, not yet decoded."""
        return self.dtype == ENCODED

    @cached_property
    def channels(self) -> int | None:
        """Size of the axis C; None if it differs between samples, or there is no such axis."""
        return self._size_of("C")

    @property
    def height(self) -> int | None:
        """Size of the axis H; None if it differs between samples, or there is no such axis."""
        return self._size_of("H")

    @property
    def width(self) -> int | None:
        """Size of the axis W; None if it differs between samples, or there is no such axis."""
        return self._size_of("W")

    @property
    def other_sizes(self) -> Sizes:
        """The sizes of the axes that are neither channels nor spatial, in the order of `layout`."""
        return tuple(self._size_of(axis) for axis in self.layout if axis not in KNOWN_AXES)

    @property
    def space(self) -> str:
        """The spatial axes of the layout: "DHW", "HW", "L" or ""."""
        return spatial_axes(self.layout)

    @property
    def size(self) -> tuple[int, ...] | None:
        """The sizes along the spatial axes, such as (height, width); None if any of them varies."""
        sizes = tuple(n for n in self.sides if n is not None)
        return sizes if len(sizes) == len(self.space) else None

    @property
    def sides(self) -> Sizes:
        """The sizes along the spatial axes, with None for each axis along which samples differ."""
        return tuple(self._size_of(axis) for axis in self.space)

    @property
    def at_least(self) -> tuple[int, ...]:
        """The minimum size along each spatial axis."""
        return self.pixels.at_least or tuple(n or 1 for n in self.sides)

    @property
    def canonical_sizes(self) -> Sizes:
        """The sizes in the order of `canonical_layout`, with 1 for a missing axis of channels."""
        return self._sizes_in(canonical_layout(self.layout))

    @cached_property
    def canonical(self) -> "Spec":
        """This spec with its axes in the order of `canonical_layout`."""
        layout = canonical_layout(self.layout)
        if self.encoded or layout == self.layout:
            return self
        return replace(self, layout=layout, shape=self.canonical_sizes)

    def describe_mismatch(self, tensor: Any, sizes: Sizes) -> str:
        """Return how a tensor differs from this spec; "" if it does not.

        Args:
            tensor: A tensor with its axes in the order of `canonical_layout`.
            sizes: `self.canonical_sizes`. The caller computes them once for all tensors, because
                that takes longer than the comparison.
        """
        shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", None)
        if shape is None or dtype is None:
            return f"a {type(tensor).__name__}, but should be a tensor"
        name = str(dtype).removeprefix("torch.")
        if self.encoded or (name == self.dtype and _fits(shape, sizes)):
            return ""
        return self.describe_mismatch_in(tuple(shape), name, canonical_layout(self.layout))

    def describe_mismatch_in(self, shape: tuple[int, ...], dtype: str, axes: str) -> str:
        """Return how a shape and a dtype differ from this spec; "" if they do not.

        `axes` has the letter of each axis in `shape`, in the same order.
        """
        sizes = self._sizes_in(axes)
        if dtype == self.dtype and _fits(shape, sizes):
            return ""
        return f"{_show(shape)} {dtype}, but its spec says {_show(sizes)} {self.dtype} ({axes})"

    def with_size(
        self, size: Sequence[int | None], at_least: tuple[int, ...] | None = None
    ) -> "Spec":
        """Return a copy with another size along the spatial axes.

        Args:
            size: The size of each spatial axis; None if it differs between samples.
            at_least: The minimum size of each spatial axis; by default its entry in `size`, or 1 if
                that is None.
        """
        usual = tuple(n or 1 for n in size)
        bound = () if at_least is None or at_least == usual else at_least
        pixels = replace(self.pixels, at_least=bound)
        sides = dict(zip(self.space, size, strict=True))
        return replace(self, shape=self._sizes_with(sides), pixels=pixels)

    def with_channels(self, channels: int | None) -> "Spec":
        """Return a copy with another number of channels, if the layout has them."""
        return replace(self, shape=self._sizes_with({"C": channels}))

    def with_values(self, values: Values) -> "Spec":
        """Return a copy with another range of numbers, as `Pixels.values` names it."""
        return replace(self, pixels=replace(self.pixels, values=values))

    def _size_of(self, axis: str) -> int | None:
        return self.shape[self.layout.index(axis)] if axis in self.layout else None

    def _sizes_in(self, axes: str) -> Sizes:
        """Return the size of each of `axes`; 1 for an axis that the layout lacks."""
        return tuple(self._size_of(axis) if axis in self.layout else 1 for axis in axes)

    def _sizes_with(self, sizes: Mapping[str, int | None]) -> Sizes:
        """Return the shape with a new size for each axis in `sizes`."""
        return tuple(sizes.get(axis, n) for axis, n in zip(self.layout, self.shape, strict=True))


def _fits(shape: Sequence[int], sizes: Sizes) -> bool:
    same_axes = len(shape) == len(sizes)
    return same_axes and all(size in (None, n) for n, size in zip(shape, sizes, strict=True))


def _show(sizes: Sizes) -> str:
    return f"({', '.join('?' if n is None else str(n) for n in sizes)})"
