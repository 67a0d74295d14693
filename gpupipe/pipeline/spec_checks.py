"""Checks of the spec of a step's input: axes, dtypes, channels and colours.

The spatial axes are H, W of an image; L of a series; D, H, W of a volume. The checks return the
input's spec, or raise StepIncompatibleError with advice.
"""

from collections.abc import Sequence

import numpy as np

from gpupipe.dataset.layout import spatial_axes
from gpupipe.dataset.spec import FLOATS, PAIR, Spec
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline.step import StepIncompatibleError

IMAGE_DTYPES = ("uint8", "float16", "float32")
"""The usual dtypes of image pixels. In other dtypes, back ends disagree on some primitives."""

DTYPES_TAKEN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("crop", "flip"), DTYPES),
    "resize": ("float16", "float32", "int16", "uint8", "uint16"),
    **dict.fromkeys(("warp", "perspective", "erase", "add_noise", "elastic", "pad"), IMAGE_DTYPES),
    **dict.fromkeys(("color_matrix", "color"), IMAGE_DTYPES),
    "blend": ("uint8",),
    "normalize": ("float16", "float32", "float64"),
}
"""The dtypes that every back end takes, by primitive, so that a pipeline means the same everywhere.

Steps refuse inputs of other dtypes. Primitives that are not listed take all dtypes.
"""

_AXIS_NAMES = {"H": "the height, H", "W": "the width, W"}
_MAX_CHANNELS = 4
_IMAGE_LAYOUTS = ("CHW", "HWC", "HW")
_UNUSUAL = {
    "normalized": "but gets normalized ones: move it before 'normalize'",
    "unscaled": "but gets unscaled levels: write 'scale: true' in the 'to_dtype' before it, or "
    "move it before 'to_dtype'",
    "filled": "but a step before it fills with a number outside them: write a fill or value from 0 "
    "to 1 there, or move this step before it",
}
"""The end of the message about colours outside the usual range, by `Pixels.values`."""


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


def check_plane(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError unless its spatial axes are H, W."""
    if check_decoded(input_spec).space != "HW":
        axes = ", ".join(input_spec.space)
        mismatch = f"the array's axes of space are {axes}" if axes else "the array has none"
        raise StepIncompatibleError(
            f"it works on height and width, but {mismatch} (layout {input_spec.layout!r}): leave "
            "it out, or set data.layout, such as CHW"
        )
    return input_spec


def check_axis(axis: str, input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if it lacks `axis` or has too many axes."""
    if axis not in check_decoded(input_spec).space:
        raise StepIncompatibleError(
            f"it works along {_AXIS_NAMES[axis]}, but the array has no such axis (layout "
            f"{input_spec.layout!r}): leave it out, or set data.layout, such as CHW"
        )
    return _check_other_axes(input_spec)


def is_video_like(layout: str) -> bool:
    """Return whether primitives that work along spatial axes support a layout.

    There may be up to two axes before the spatial axes and none after, or at most one before and
    one after. For two spatial axes, examples are HW, CHW, FCHW, HWC and FHWC.
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
    if PAIR in check_plane(input_spec).layout:
        raise StepIncompatibleError(
            "it works on real numbers, but these are complex: keep real and imaginary parts as "
            "channels instead"
        )
    if input_spec.dtype not in DTYPES_TAKEN["resize"]:
        raise StepIncompatibleError(
            f"numbers of dtype {input_spec.dtype} cannot be resampled: write 'to_dtype: {{dtype: "
            "float32}' before it"
        )
    return _check_other_axes(input_spec)


def check_per_channel(name: str, values: tuple[float, ...], input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if `values` do not match its channels.

    Args:
        name: The parameter's name, for the message.
        values: The parameter's value: one number, or one per channel.
        input_spec: The step's input, which must be decoded.
    """
    channels = count_channels(check_decoded(input_spec))
    if channels is not None and len(values) not in (1, channels):
        each = "" if channels == 1 else f", or {channels}"
        raise StepIncompatibleError(
            f"{name} has {len(values)} numbers, but the image has {channels} "
            f"channel{'s' * (channels != 1)}: write one{each}"
        )
    return input_spec


def has_channel_layout(layout: str) -> bool:
    """Return whether the primitive `normalize` supports a layout.

    If C is the last axis or missing, there may be at most four other axes. Otherwise there may be
    at most one axis before C, and at most three after C.
    """
    before, _, after = layout.partition("C")
    return len(before) <= (1 if after else 4) and len(after) <= 3


def check_channels(input_spec: Spec) -> Spec:
    """Check where the axis of channels is; return `input_spec`.

    The layout, such as CHW, names the axes in order; C stands for the channels.

    Raises:
        StepIncompatibleError: `has_channel_layout` does not accept the layout.
    """
    if not has_channel_layout(input_spec.layout):
        raise StepIncompatibleError(
            f"the array has too many axes (layout {input_spec.layout}): leave it out, "
            "or store the data with fewer axes"
        )
    return input_spec


def check_image(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError unless its layout is CHW, HWC or HW."""
    layout = check_plane(input_spec).layout
    if layout not in _IMAGE_LAYOUTS:
        raise StepIncompatibleError(
            f"it works on images, but the array has further axes (layout {layout}): leave it out"
        )
    return input_spec


def with_sides_swapped(input_spec: Spec, p: float) -> Spec:
    """Return the spec of images whose height and width are swapped with a probability p."""
    if not p:
        return input_spec
    (height, width), least = input_spec.sides, input_spec.at_least
    if p == 1:
        return input_spec.with_size((width, height), least[::-1])
    if height is not None and height == width:
        return input_spec
    return input_spec.with_size((None, None), (min(least),) * 2)


def check_picture(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError unless it describes an image.

    An image has the layout CHW, HWC or HW, 1 to 4 channels, and uint8, float16 or float32 values.
    """
    if check_image(input_spec).dtype not in DTYPES_TAKEN["warp"]:
        raise StepIncompatibleError(
            f"it works on uint8 and floats, but gets {input_spec.dtype}: write 'to_dtype: "
            f"{{dtype: float32}}' before it"
        )
    if input_spec.channels is not None and not 1 <= input_spec.channels <= _MAX_CHANNELS:
        raise StepIncompatibleError(
            f"it works on 1 to {_MAX_CHANNELS} channels, but the array has "
            f"{input_spec.channels}: leave it out"
        )
    return input_spec


def is_picture(spec: Spec) -> bool:
    """Return whether `check_picture` accepts a spec, and its number of channels is known."""
    channels = count_channels(spec)
    is_image = spec.layout in _IMAGE_LAYOUTS and spec.dtype in IMAGE_DTYPES
    return is_image and channels is not None and 1 <= channels <= _MAX_CHANNELS


def check_color(
    input_spec: Spec, dtypes: Sequence[str] = DTYPES_TAKEN["color"], any_values: bool = False
) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if its colours cannot be changed.

    The input must be an image of 1 or 3 channels, with values in the usual range of its dtype: 0 to
    255 for uint8, 0 to 1 for floats.

    Args:
        input_spec: The step's input.
        dtypes: The dtypes that the step takes.
        any_values: Whether the step also takes numbers outside the usual range.
    """
    if count_channels(check_image(input_spec)) not in (1, 3):
        raise StepIncompatibleError(
            f"it works on 1 or 3 channels, but gets {input_spec} in the layout "
            f"{input_spec.layout}: leave it out"
        )
    if not any_values and input_spec.pixels.values in _UNUSUAL:
        colors = input_spec.dtype if input_spec.pixels.values == "unscaled" else "colours"
        raise StepIncompatibleError(
            f"it works on {colors} from 0 to 1, {_UNUSUAL[input_spec.pixels.values]}"
        )
    if input_spec.dtype not in dtypes:
        target = dtypes[0] if input_spec.dtype in FLOATS else dtypes[-1]
        raise StepIncompatibleError(
            f"it works on {' and '.join(dtypes)}, but gets {input_spec.dtype}: write 'to_dtype: "
            f"{{dtype: {target}, scale: true}}' before it"
        )
    return input_spec


def count_channels(input_spec: Spec) -> int | None:
    """Return the number of channels: 1 for a layout without C, None if unknown."""
    return input_spec.channels if "C" in input_spec.layout else 1


def check_fill(fill: tuple[float, ...], input_spec: Spec, name: str = "fill") -> Spec:
    """Return `input_spec`; raise StepIncompatibleError unless `fill` fits its channels and dtype.

    Args:
        fill: The parameter's value: one number, or one per channel.
        input_spec: The step's input.
        name: The parameter's name, for the message.
    """
    check_per_channel(name, fill, input_spec)
    if input_spec.dtype in ("float16", "float32", "float64", "bfloat16"):
        return input_spec
    lowest, highest = 0, 1
    if input_spec.dtype != "bool":
        lowest, highest = np.iinfo(input_spec.dtype).min, np.iinfo(input_spec.dtype).max
    wrong = next((n for n in fill if not lowest <= n <= highest), None)
    if wrong is not None:
        raise StepIncompatibleError(
            f"{name} is {wrong:g}, but {input_spec.dtype} holds {lowest:,} to {highest:,}: write a "
            "number between them"
        )
    return input_spec


def erase_with(value: tuple[float, ...], input_spec: Spec, name: str) -> Spec:
    """Return the spec of an image some of whose pixels become `value`, as it is.

    Args:
        value: The parameter's value: one number, or one per channel.
        input_spec: The step's input.
        name: The parameter's name, for the message.

    Raises:
        StepIncompatibleError: The input is no image, or cannot hold the value.
    """
    check_fill(value, check_picture(input_spec), name)
    part = next((n for n in value if not n.is_integer()), None)
    if part is not None and input_spec.dtype == "uint8":
        raise StepIncompatibleError(
            f"{name} is {part:g}, but uint8 holds whole numbers from 0 to 255: write one of them, "
            "or 'to_dtype: {dtype: float32, scale: true}' before it"
        )
    return add_fill(value, input_spec)


def add_fill(fill: tuple[float, ...], spec: Spec) -> Spec:
    """Return the spec of an image after a border of the value `fill` was added.

    If the image has floats from 0 to 1, and `fill` is outside this range, `pixels.values` becomes
    "filled". Else the spec stays the same.
    """
    if (
        spec.dtype in FLOATS
        and spec.pixels.values == "usual"
        and not all(0 <= n <= 1 for n in fill)
    ):
        return spec.with_values("filled")
    return spec
