"""Checks that steps make of their input's spec, along spatial axes and channels.

The spatial axes are H, W of an image; L of a series; D, H, W of a volume. The checks return the
spec of a step's input, or raise StepIncompatible with what to write instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.spec import PAIR, Spec, space
from gpupipe.errors import counted
from gpupipe.pipeline.primitives import DTYPES_TAKEN
from gpupipe.pipeline.step import SampleIncompatible, StepIncompatible

if TYPE_CHECKING:
    pass

Floats = NDArray[np.float64]

_MOST_CHANNELS = 4
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


def check_decoded(given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if it is not decoded yet."""
    if given.encoded:
        raise StepIncompatible(
            "it works on pixels, but what reaches it are encoded bytes: write a 'decode' "
            "step before it"
        )
    return given


def check_per_channel(what: str, numbers: tuple[float, ...], given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if `numbers` do not match its channels.

    Args:
        what: The parameter's name, for the message.
        numbers: The parameter's value: one number, or one per channel.
        given: The step's input, which must be decoded.

    """
    channels = check_decoded(given).channels if "C" in given.layout else 1
    if channels is not None and len(numbers) not in (1, channels):
        each = "" if channels == 1 else f", or {channels}"
        raise StepIncompatible(
            f"{what} has {len(numbers)} numbers, but the image has {channels} "
            f"channel{'s' * (channels != 1)}: write one{each}"
        )
    return given


def count_spatial_axes(given: Spec) -> int:
    """Return the number of spatial axes; raise StepIncompatible if there is none."""
    count = len(check_decoded(given).space)
    if not count:
        raise StepIncompatible(
            "it works along height and width, depth or length, but the array has the "
            f"layout {given.layout!r}: set data.layout, such as CHW"
        )
    return count


def expand_sides(what: str, numbers: tuple[int, ...], given: Spec) -> tuple[int, ...]:
    """Write out a window size with one number per spatial axis of the input.

    Args:
        what: The parameter's name, for the message.
        numbers: The parameter's value, a field_types.Window.
        given: The step's input.

    Raises:
        StepIncompatible: If the count of numbers does not match the axes.

    """
    axes = count_spatial_axes(given)
    written = getattr(numbers, "written", numbers)
    if len(written) not in (1, axes):
        raise _misfit(what, written, given, _WINDOW_WORDS[axes])
    return tuple(written) * (axes // len(written))


def expand_margins(what: str, numbers: tuple[int, ...], given: Spec) -> tuple[int, ...]:
    """Write out a padding as one number before each spatial axis and one after each.

    The order is torchvision's: [left, top, right, bottom] for an image, and [left, top, front,
    right, bottom, back] for a volume.

    Args:
        what: The parameter's name, for the message.
        numbers: The parameter's value, a field_types.Padding.
        given: The step's input.

    Raises:
        StepIncompatible: If the count of numbers does not match the axes.

    """
    axes = count_spatial_axes(given)
    written = tuple(getattr(numbers, "written", numbers))
    if len(written) == 1:
        return written * (2 * axes)
    if axes == 2 and len(numbers) == 4:
        return tuple(numbers)
    if len(written) != 2 * axes:
        raise _misfit(what, written, given, _MARGIN_WORDS[axes])
    return written


def before_and_after(margins: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Reorder `margins` by spatial axis: [top, left] and [bottom, right] for an image."""
    both = np.array(margins, np.float64).reshape(2, -1)[:, ::-1]
    return both[0], both[1]


def check_mirror(mode: str, before: Floats, after: Floats, size: Sequence[int]) -> None:
    """Raise SampleIncompatible if an image of `size` is too small for this mirror padding."""
    room = np.array(size) - (mode == "reflect")
    if mode in ("reflect", "symmetric") and (np.maximum(before, after) > room).any():
        most = "x".join(str(int(n)) for n in np.maximum(before, after))
        what = "x".join(map(str, size))
        raise SampleIncompatible(f"{mode} cannot add {most} pixels to an image of {what}")


def _misfit(what: str, written: tuple[int, ...], given: Spec, words: str) -> StepIncompatible:
    return StepIncompatible(
        f"{what} has {counted(len(written), 'number')}, but the axes of space are "
        f"{', '.join(given.space)} (layout {given.layout}): write {words}"
    )


def check_plane(given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if its spatial axes are not exactly height, width."""
    if check_decoded(given).space != "HW":
        what = (
            f"the array's axes of space are {', '.join(given.space)}"
            if given.space
            else "the array has none"
        )
        raise StepIncompatible(
            f"it works on height and width, but {what} (layout {given.layout!r}): leave it "
            "out, or set data.layout, such as CHW"
        )
    return given


def check_axis(axis: str, given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if it lacks the axis or has too many others."""
    if axis not in check_decoded(given).space:
        raise StepIncompatible(
            f"it works along {_WORDS[axis]}, but the array has no such axis (layout "
            f"{given.layout!r}): leave it out, or set data.layout, such as CHW"
        )
    return _check_other_axes(given)


_WORDS = {"H": "the height, H", "W": "the width, W"}


def is_video_like(layout: str) -> bool:
    """Return whether primitives along spatial axes take a layout.

    At most two axes stand before the spatial ones and none after them, or one of each, or one
    after.
    """
    before, _, after = layout.partition(space(layout))
    return (len(before), len(after)) in ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))


def _check_other_axes(given: Spec) -> Spec:
    if not is_video_like(given.layout):
        raise StepIncompatible(
            f"the array has too many axes around {given.space} (layout "
            f"{given.layout}): leave it out, or store the data with fewer axes"
        )
    return given


def has_channel_layout(layout: str) -> bool:
    """Return whether the primitive `normalize` takes a layout.

    At most four axes stand before the channels if they come last or are missing; else at most one
    axis before them and three after.
    """
    before, _, after = layout.partition("C")
    return len(before) <= (1 if after else 4) and len(after) <= 3


def check_channels(given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if its channels cannot be normalized."""
    if not has_channel_layout(given.layout):
        raise StepIncompatible(
            f"the array has too many axes (layout {given.layout}): leave it out, "
            "or store the data with fewer axes"
        )
    return given


def check_resampling(given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if it cannot be resampled."""
    if check_plane(given).dtype not in DTYPES_TAKEN["resize"] or PAIR in given.layout:
        raise StepIncompatible(
            f"{_numbers(given)} cannot be resampled: write 'to_dtype: {{dtype: float32}}' before it"
            if PAIR not in given.layout
            else _NO_PAIRS
        )
    return _check_other_axes(given)


_NO_PAIRS = (
    "it works on real numbers, but these are complex: keep real and imaginary parts as "
    "channels instead"
)


def check_picture(given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if it is not like an image.

    That is height, width and 1 to 4 channels, in uint8, float16 or float32.
    """
    layout = check_plane(given).layout
    if layout not in ("CHW", "HWC", "HW"):
        raise StepIncompatible(
            f"it works on images, but the array has further axes (layout {layout}): leave it out"
        )
    if given.dtype not in DTYPES_TAKEN["warp"]:
        raise StepIncompatible(
            f"it works on uint8 and floats, but gets {given.dtype}: write 'to_dtype: "
            f"{{dtype: float32}}' before it"
        )
    if given.channels is not None and not 1 <= given.channels <= _MOST_CHANNELS:
        raise StepIncompatible(
            f"it works on 1 to {_MOST_CHANNELS} channels, but the array has "
            f"{given.channels}: leave it out"
        )
    return given


def _numbers(given: Spec) -> str:
    return f"numbers of dtype {given.dtype}"


def check_fill(fill: tuple[float, ...], given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if `fill` does not match its channels and dtype."""
    check_per_channel("fill", fill, given)
    if given.dtype in ("float16", "float32", "float64", "bfloat16"):
        return given
    lowest, highest = (
        (0, 1) if given.dtype == "bool" else (np.iinfo(given.dtype).min, np.iinfo(given.dtype).max)
    )
    wrong = next((n for n in fill if not lowest <= n <= highest), None)
    if wrong is not None:
        raise StepIncompatible(
            f"fill is {wrong:g}, but {given.dtype} holds {lowest:,} to {highest:,}: write a "
            "number between them"
        )
    return given
