"""Checks that steps make of their input's spec: channels, colours, and numbers per channel.

The checks return the spec of a step's input, or raise StepIncompatibleError with what to write
instead. `spec_checks` has those of spatial axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpupipe.dataset.spec import FLOATS, Spec
from gpupipe.pipeline.primitives import DTYPES_TAKEN
from gpupipe.pipeline.spec_checks import check_decoded, check_plane
from gpupipe.pipeline.step import StepIncompatibleError

_MAX_CHANNELS = 4


def check_per_channel(what: str, numbers: tuple[float, ...], input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if `numbers` do not match its channels.

    Args:
        what: The parameter's name, for the message.
        numbers: The parameter's value: one number, or one per channel.
        input_spec: The step's input, which must be decoded.
    """
    channels = check_decoded(input_spec).channels if "C" in input_spec.layout else 1
    if channels is not None and len(numbers) not in (1, channels):
        each = "" if channels == 1 else f", or {channels}"
        raise StepIncompatibleError(
            f"{what} has {len(numbers)} numbers, but the image has {channels} "
            f"channel{'s' * (channels != 1)}: write one{each}"
        )
    return input_spec


def has_channel_layout(layout: str) -> bool:
    """Return whether the primitive `normalize` takes a layout.

    At most four axes stand before the channels if they come last or are missing; else at most one
    axis before them and three after.
    """
    before, _, after = layout.partition("C")
    return len(before) <= (1 if after else 4) and len(after) <= 3


def check_channels(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if its channels cannot be normalized."""
    if not has_channel_layout(input_spec.layout):
        raise StepIncompatibleError(
            f"the array has too many axes (layout {input_spec.layout}): leave it out, "
            "or store the data with fewer axes"
        )
    return input_spec


def check_picture(input_spec: Spec) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if it is not like an image.

    That is height, width and 1 to 4 channels, in uint8, float16 or float32.
    """
    layout = check_plane(input_spec).layout
    if layout not in ("CHW", "HWC", "HW"):
        raise StepIncompatibleError(
            f"it works on images, but the array has further axes (layout {layout}): leave it out"
        )
    if input_spec.dtype not in DTYPES_TAKEN["warp"]:
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


def check_color(
    input_spec: Spec, dtypes: Sequence[str] = DTYPES_TAKEN["color"], any_values: bool = False
) -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if its colours cannot be changed.

    They can in images of 1 or 3 channels, of which each number is in the usual range of its dtype:
    0 to 255 for uint8, 0 to 1 for floats.

    Args:
        input_spec: The step's input.
        dtypes: The dtypes that the step takes.
        any_values: Whether the step also takes numbers outside the usual range.
    """
    layout = check_plane(input_spec).layout
    if layout not in ("CHW", "HWC", "HW"):
        raise StepIncompatibleError(
            f"it works on images, but the array has further axes (layout {layout}): leave it out"
        )
    if count_channels(input_spec) not in (1, 3):
        raise StepIncompatibleError(
            f"it works on 1 or 3 channels, but gets {input_spec} in the layout {layout}: leave it "
            "out"
        )
    if not any_values:
        _check_usual_values(input_spec)
    if input_spec.dtype not in dtypes:
        target = dtypes[0] if input_spec.dtype in FLOATS else dtypes[-1]
        raise StepIncompatibleError(
            f"it works on {' and '.join(dtypes)}, but gets {input_spec.dtype}: write 'to_dtype: "
            f"{{dtype: {target}, scale: true}}' before it"
        )
    return input_spec


def count_channels(input_spec: Spec) -> int | None:
    """Return the number of channels; 1 for an image without an axis of them, None if unknown."""
    return input_spec.channels if "C" in input_spec.layout else 1


def _check_usual_values(input_spec: Spec) -> None:
    if input_spec.values == "normalized":
        raise StepIncompatibleError(
            "it works on colours from 0 to 1, but gets normalized ones: move it before 'normalize'"
        )
    if input_spec.values == "unscaled":
        raise StepIncompatibleError(
            f"it works on {input_spec.dtype} from 0 to 1, but gets unscaled levels: write 'scale: "
            "true' in the 'to_dtype' before it, or move it before 'to_dtype'"
        )
    if input_spec.values == "filled":
        raise StepIncompatibleError(
            "it works on colours from 0 to 1, but a step before it fills with a number outside "
            "them: write a fill or value from 0 to 1 there, or move this step before it"
        )


def check_fill(fill: tuple[float, ...], input_spec: Spec, what: str = "fill") -> Spec:
    """Return `input_spec`; raise StepIncompatibleError if `fill` misfits its channels or dtype.

    Args:
        fill: The parameter's value: one number, or one per channel.
        input_spec: The step's input.
        what: The parameter's name, for the message.
    """
    check_per_channel(what, fill, input_spec)
    if input_spec.dtype in ("float16", "float32", "float64", "bfloat16"):
        return input_spec
    lowest, highest = (
        (0, 1)
        if input_spec.dtype == "bool"
        else (np.iinfo(input_spec.dtype).min, np.iinfo(input_spec.dtype).max)
    )
    wrong = next((n for n in fill if not lowest <= n <= highest), None)
    if wrong is not None:
        raise StepIncompatibleError(
            f"{what} is {wrong:g}, but {input_spec.dtype} holds {lowest:,} to {highest:,}: write a "
            "number between them"
        )
    return input_spec


def add_fill(fill: tuple[float, ...], spec: Spec) -> Spec:
    """Return the spec of images of `spec` after parts of them were filled; see Spec.values."""
    if spec.dtype in FLOATS and spec.values == "usual" and not all(0 <= n <= 1 for n in fill):
        return replace(spec, values="filled")
    return spec
