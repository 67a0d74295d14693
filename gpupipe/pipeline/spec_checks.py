"""Checks that steps make of their input's spec: is it decoded, and which spatial axes has it.

The spatial axes are H, W of an image; L of a series; D, H, W of a volume. The checks return the
spec of a step's input, or raise StepIncompatibleError with what to write instead. `channel_checks`
has those of channels and colours.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.spec import PAIR, Spec, spatial_axes
from gpupipe.errors import counted
from gpupipe.pipeline.primitives import DTYPES_TAKEN
from gpupipe.pipeline.step import SampleIncompatibleError, StepIncompatibleError

Floats = NDArray[np.float64]

_WINDOW_WORDS = {
    1: "one number",
    2: "one number, or [height, width]",
    3: "one number, or [depth, height, width]",
}
_MARGIN_WORDS = {
    1: "one number, or [before, after]",
    2: "one number, [left and right, top and bottom], or [left, top, right, bottom]",
    3: "one number, or [left, top, front, right, bottom, back]",
}


def check_decoded(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if it is not decoded yet."""
    if input_spec.encoded:
        raise StepIncompatibleError(
            "it works on pixels, but what reaches it are encoded bytes: write a 'decode' "
            "step before it"
        )
    return input_spec


def count_spatial_axes(input_spec: Spec) -> int:
    """Return the number of spatial axes; raise StepIncompatibleError if there is none."""
    count = len(check_decoded(input_spec).space)
    if not count:
        raise StepIncompatibleError(
            "it works along height and width, depth or length, but the array has the "
            f"layout {input_spec.layout!r}: set data.layout, such as CHW"
        )
    return count


def expand_sides(what: str, numbers: tuple[int, ...], input_spec: Spec) -> tuple[int, ...]:
    """Write out a window size with one number per spatial axis of the input.

    Args:
        what: The parameter's name, for the message.
        numbers: The parameter's value, a field_types.Window.
        input_spec: The step's input.

    Raises:
        StepIncompatibleError: If the count of numbers does not match the axes.
    """
    axes = count_spatial_axes(input_spec)
    written = getattr(numbers, "written", numbers)
    if len(written) not in (1, axes):
        raise _misfit(what, written, input_spec, _WINDOW_WORDS[axes])
    return tuple(written) * (axes // len(written))


def expand_margins(what: str, numbers: tuple[int, ...], input_spec: Spec) -> tuple[int, ...]:
    """Write out a padding as one number before each spatial axis and one after each.

    The order is torchvision's: [left, top, right, bottom] for an image, and [left, top, front,
    right, bottom, back] for a volume.

    Args:
        what: The parameter's name, for the message.
        numbers: The parameter's value, a field_types.Padding.
        input_spec: The step's input.

    Raises:
        StepIncompatibleError: If the count of numbers does not match the axes.
    """
    axes = count_spatial_axes(input_spec)
    written = tuple(getattr(numbers, "written", numbers))
    if len(written) == 1:
        return written * (2 * axes)
    if axes == 2 and len(numbers) == 4:
        return tuple(numbers)
    if len(written) != 2 * axes:
        raise _misfit(what, written, input_spec, _MARGIN_WORDS[axes])
    return written


def before_and_after(margins: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Reorder `margins` by spatial axis: [top, left] and [bottom, right] for an image."""
    both = np.array(margins, np.float64).reshape(2, -1)[:, ::-1]
    return both[0], both[1]


def check_mirror(mode: str, before: Floats, after: Floats, size: Sequence[int]) -> None:
    """Raise SampleIncompatibleError if an image of `size` is too small for this mirror padding."""
    room = np.array(size) - (mode == "reflect")
    if mode in ("reflect", "symmetric") and (np.maximum(before, after) > room).any():
        most = "x".join(str(int(n)) for n in np.maximum(before, after))
        what = "x".join(map(str, size))
        raise SampleIncompatibleError(f"{mode} cannot add {most} pixels to an image of {what}")


def describe_small(what: str, size: Sequence[int], least: Sequence[int]) -> str:
    """Say that an image of `size` has too few pixels for an operation; both [height, width]."""
    pixels, needed = ("x".join(str(int(n)) for n in sides) for sides in (size, least))
    return f"{what} needs at least {needed} pixels, but the image has {pixels}"


def describe_small_image(size: Sequence[int], window: Sequence[int]) -> str:
    """Say that an image of `size` is smaller than the window that a crop cuts out of it."""
    return (
        f"{describe_small('the crop', size, window)}: write a smaller size, resize first, or pad "
        "(random_crop: pad_if_needed: true)"
    )


def _misfit(
    what: str, written: tuple[int, ...], input_spec: Spec, words: str
) -> StepIncompatibleError:
    return StepIncompatibleError(
        f"{what} has {counted(len(written), 'number')}, but the axes of space are "
        f"{', '.join(input_spec.space)} (layout {input_spec.layout}): write {words}"
    )


def check_plane(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError unless its spatial axes are H, W."""
    if check_decoded(input_spec).space != "HW":
        what = (
            f"the array's axes of space are {', '.join(input_spec.space)}"
            if input_spec.space
            else "the array has none"
        )
        raise StepIncompatibleError(
            f"it works on height and width, but {what} (layout {input_spec.layout!r}): leave it "
            "out, or set data.layout, such as CHW"
        )
    return input_spec


def check_axis(axis: str, input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if it lacks the axis, or has too many."""
    if axis not in check_decoded(input_spec).space:
        raise StepIncompatibleError(
            f"it works along {_WORDS[axis]}, but the array has no such axis (layout "
            f"{input_spec.layout!r}): leave it out, or set data.layout, such as CHW"
        )
    return _check_other_axes(input_spec)


_WORDS = {"H": "the height, H", "W": "the width, W"}


def is_video_like(layout: str) -> bool:
    """Return whether primitives along spatial axes take a layout.

    At most two axes stand before the spatial ones and none after them, or one of each, or one
    after.
    """
    before, _, after = layout.partition(spatial_axes(layout))
    return (len(before), len(after)) in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))


def _check_other_axes(input_spec: Spec) -> Spec:
    if not is_video_like(input_spec.layout):
        raise StepIncompatibleError(
            f"the array has too many axes around {input_spec.space} (layout "
            f"{input_spec.layout}): leave it out, or store the data with fewer axes"
        )
    return input_spec


def check_resampling(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if it cannot be resampled."""
    if check_plane(input_spec).dtype not in DTYPES_TAKEN["resize"] or PAIR in input_spec.layout:
        raise StepIncompatibleError(
            f"numbers of dtype {input_spec.dtype} cannot be resampled: "
            "write 'to_dtype: {dtype: float32}' before it"
            if PAIR not in input_spec.layout
            else _NO_PAIRS
        )
    return _check_other_axes(input_spec)


_NO_PAIRS = (
    "it works on real numbers, but these are complex: keep real and imaginary parts as "
    "channels instead"
)
