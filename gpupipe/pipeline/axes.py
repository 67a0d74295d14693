"""What steps share that work along the axes of space: of an image (H, W), of a series (L,), of a
volume (D, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.spec import PAIR, Spec, canonical, space
from gpupipe.errors import counted
from gpupipe.pipeline.dtypes import TAKEN
from gpupipe.pipeline.step import SampleIncompatible, StepIncompatible, decoded, one_a_channel
from gpupipe.runtime.transfer import to_device

if TYPE_CHECKING:
    from torch import Tensor

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


def spatial(given: Spec) -> int:
    """How many axes of space there are. Raises StepIncompatible where there is none."""
    count = len(decoded(given).space)
    if not count:
        raise StepIncompatible(
            "it works along height and width, depth or length, but the array has the "
            f"layout {given.layout!r}: set data.layout, such as CHW"
        )
    return count


def sides(what: str, numbers: tuple[int, ...], given: Spec) -> tuple[int, ...]:
    """`numbers`, parameters.Window, with one for each axis of space.

    Raises StepIncompatible where they are for others.
    """
    axes = spatial(given)
    written = getattr(numbers, "written", numbers)
    if len(written) not in (1, axes):
        raise _misfit(what, written, given, _WINDOW_WORDS[axes])
    return tuple(written) * (axes // len(written))


def margins(what: str, numbers: tuple[int, ...], given: Spec) -> tuple[int, ...]:
    """`numbers`, parameters.Padding, as one before each axis of space, [left, top, front], and then
    one behind each. Raises StepIncompatible.
    """
    axes = spatial(given)
    written = tuple(getattr(numbers, "written", numbers))
    if len(written) == 1:
        return written * (2 * axes)
    if axes == 2 and len(numbers) == 4:
        return tuple(numbers)
    if len(written) != 2 * axes:
        raise _misfit(what, written, given, _MARGIN_WORDS[axes])
    return written


def before_and_after(margins: tuple[int, ...]) -> tuple[Floats, Floats]:
    """`margins` in the order of the axes of space: [top, left] and [bottom, right] of an image."""
    both = np.array(margins, np.float64).reshape(2, -1)[:, ::-1]
    return both[0], both[1]


def check_mirror(mode: str, before: Floats, after: Floats, size: Sequence[int]) -> None:
    """Raises SampleIncompatible where an image of `size` is too small to be mirrored so far."""
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


def plane(given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where it has not height and width, and nothing else,
    as axes of space.
    """
    if decoded(given).space != "HW":
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


def along(axis: str, given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where it has no such axis, or more axes around those
    of space than DALI's operators take.
    """
    if axis not in decoded(given).space:
        raise StepIncompatible(
            f"it works along {_WORDS[axis]}, but the array has no such axis (layout "
            f"{given.layout!r}): leave it out, or set data.layout, such as CHW"
        )
    return _framed(given)


_WORDS = {"H": "the height, H", "W": "the width, W"}


def as_video(layout: str) -> str | None:
    """What DALI calls a layout with axes of space, perhaps with one of channels added behind: CHW,
    FCHW, HWC, FHWC, and so on with D; None where it has no name for it."""
    before, _, behind = layout.partition(space(layout))
    names = {(0, 0): "{}C", (1, 0): "C{}", (2, 0): "FC{}", (0, 1): "{}C", (1, 1): "F{}C"}
    name = names.get((len(before), len(behind)))
    return None if name is None else name.format(space(layout))


def _framed(given: Spec) -> Spec:
    if as_video(given.layout) is None:
        raise StepIncompatible(
            f"the array has too many axes around {given.space} for DALI (layout "
            f"{given.layout}): leave it out, or store the data with fewer axes"
        )
    return given


def with_channels(layout: str) -> tuple[str, list[int]] | None:
    """What DALI calls a layout when it normalizes each channel, and where it needs axes of length 1
    for that; None where it has no name for it.
    """
    before, behind = layout.partition("C")[::2] if "C" in layout else (layout, "")
    if not behind:
        more = max(0, 2 - len(before))
        name = {2: "HWC", 3: "DHWC", 4: "FDHWC"}.get(len(before) + more)
        return (
            None
            if name is None
            else (name, [*range(more), *([] if "C" in layout else [len(before) + more])])
        )
    more = max(0, 2 - len(behind))
    name = {(0, 2): "CHW", (0, 3): "CDHW", (1, 2): "FCHW", (1, 3): "FCDHW"}.get(
        (len(before), len(behind) + more)
    )
    return None if name is None else (name, [len(layout) + n for n in range(more)])


def check_channels(given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where DALI cannot normalize its channels."""
    if with_channels(given.layout) is None:
        raise StepIncompatible(
            f"the array has too many axes for DALI (layout {given.layout}): leave it out, "
            "or store the data with fewer axes"
        )
    return given


def resampled(given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where DALI or torchvision cannot resample it."""
    if plane(given).dtype not in TAKEN["resize"] or PAIR in given.layout:
        raise StepIncompatible(
            f"{_numbers(given)} cannot be resampled: write 'to_dtype: {{dtype: float32}}' before it"
            if PAIR not in given.layout
            else _NO_PAIRS
        )
    return _framed(given)


_NO_PAIRS = (
    "it works on real numbers, but these are complex: keep real and imaginary parts as "
    "channels instead"
)


def picture(given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where it is not like an image: height, width, and 1
    to 4 channels of numbers that DALI warps.
    """
    layout = plane(given).layout
    if layout not in ("CHW", "HWC", "HW"):
        raise StepIncompatible(
            f"it works on images, but the array has further axes (layout {layout}): leave it out"
        )
    if given.dtype not in TAKEN["warp"]:
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


def filled(fill: tuple[float, ...], given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where `fill` is not one number, or one a channel,
    that its dtype can hold.
    """
    one_a_channel("fill", fill, given)
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


def in_float32(image: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    """What `make` makes of an image, computed in float32 if it is float16: torchvision would hold
    places in the image in float16 too.
    """
    import torch

    return make(image.float()).to(torch.float16) if image.dtype == torch.float16 else make(image)


def cut(image: Tensor, anchor: Any, shape: Any, fill: tuple[float, ...] = (0.0,)) -> Tensor:
    """The window of `shape` at `anchor`, along the last axes; what is outside the image is `fill`:
    one number, or one a channel, as integers truncated.
    """
    import torch

    axes = len(shape)
    spans = [(int(a), int(a) + int(n)) for a, n in zip(anchor, shape, strict=True)]
    inside = _part(image, [(max(low, 0), max(high, 0)) for low, high in spans])
    if all(
        low >= 0 and high <= n for (low, high), n in zip(spans, image.shape[-axes:], strict=True)
    ):
        return inside
    made = image.new_empty((*image.shape[:-axes], *(high - low for low, high in spans)))
    filling = torch.tensor(fill, dtype=torch.float64).to(image.dtype)
    made[...] = to_device(filling, image.device).reshape(-1, *[1] * axes)
    _part(
        made,
        [
            (max(-low, 0), max(-low, 0) + n)
            for (low, _), n in zip(spans, inside.shape[-axes:], strict=True)
        ],
    )[...] = inside
    return made


def _part(image: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    """A view of these spans of the last axes."""
    for axis, (low, high) in enumerate(spans, -len(spans)):
        image = image.narrow(
            axis, min(low, image.shape[axis]), max(0, min(high, image.shape[axis]) - low)
        )
    return image


def to_steps(array: Tensor, layout: str) -> Tensor:
    """A view of an array in the order of axes that steps get: see spec.canonical."""
    if "C" not in layout:
        array, layout = array.unsqueeze(0), f"C{layout}"
    return array.permute([layout.index(axis) for axis in canonical(layout)])


def from_steps(array: Tensor, layout: str) -> Tensor:
    """The way back: a view in `layout`."""
    order = canonical(layout)
    if "C" not in layout:
        array, order = array.squeeze(order.index("C")), order.replace("C", "")
    return array.permute([order.index(axis) for axis in layout])
