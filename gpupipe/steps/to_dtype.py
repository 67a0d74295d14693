"""to_dtype and normalize: the last steps of most pipelines, which may run on whole batches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import model_validator

from gpupipe.dataset.spec import FLOATS, PAIR, Values
from gpupipe.errors import shown
from gpupipe.pipeline.spec_checks import (
    DTYPES_TAKEN,
    check_channels,
    check_decoded,
    check_per_channel,
)
from gpupipe.pipeline.step import Params, Primitives, Spec, Step, StepIncompatibleError, of_any_size
from gpupipe.runtime.memory import to_device
from gpupipe.schema.field_types import PositiveChannels, Value

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_Float = Literal["float32", "float16", "float64"]
_Integer = Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
_LESS_THAN_ONE = 1e-3
"""torchvision truncates float * (largest integer + 1 - 1e-3), see v2.functional.to_dtype."""
_UNSCALED = ("bool", "uint32", "uint64")
_TOO_LARGE = {("float32", "int32"), ("float32", "int64"), ("float64", "int64")}
_BEYOND_HALF = ("uint16", "int32", "int64")


class ToDtype(Step):
    """Convert to another dtype, as torchvision.transforms.v2.ToDtype.

    A value that an integer dtype cannot hold becomes the nearest value in its range, and NaN
    becomes 0. torchvision leaves both undefined.

    Attributes:
        dtype: float16, float32, float64, int8 to int64, uint8 to uint64, or bool. For batches of
            bfloat16, set loader.dtype.
        scale: Map the full range of an integer dtype (0..255 for uint8) to 0..1 in a float dtype,
            and back. Between integer dtypes, shift bits. The default is false.
    """

    dtype: Literal[_Float, _Integer, "bool"]
    scale: bool = False

    example = {"dtype": "float32", "scale": True}
    can_run_on_batches = True
    speed_advice = (
        "leave it out with normalize, and do both on the GPU: a batch of uint8 is a quarter of one "
        "of float32"
    )

    def infer_spec(self, input_spec: Spec) -> Spec:
        stored = check_decoded(input_spec).dtype
        if self.scale and stored != self.dtype:
            _check_scale(stored, self.dtype)
        return replace(input_spec.with_values(self._values(input_spec)), dtype=self.dtype)

    def _values(self, input_spec: Spec) -> Values:
        """Return the value range of the output, as in `Pixels.values`."""
        if self.dtype == input_spec.dtype:
            return input_spec.pixels.values
        if not _is_float(self.dtype):
            return "usual"
        return input_spec.pixels.values if self.scale or _is_float(input_spec.dtype) else "unscaled"

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec:
        dtype = input_spec.dtype if input_spec.dtype in FLOATS else FLOATS[0]
        return replace(of_any_size(input_spec), dtype=dtype)

    def lower(self, image: Primitives, p: Params) -> None:
        stored = image.spec.dtype
        has_range_already = stored == self.dtype or (_is_float(stored) and _is_float(self.dtype))
        image.to_dtype(self.dtype, self.scale and not has_range_already)

    def torch(self, image: Any, p: Params) -> Any:
        import torch
        from torchvision.transforms.v2 import functional as F

        dtype = getattr(torch, self.dtype)
        if _is_float(self.dtype) or self.dtype == "bool" or image.dtype in (dtype, torch.bool):
            return F.to_dtype(image, dtype, scale=self.scale)
        return _integers(image, dtype, self.scale)


class Normalize(Step):
    """Compute (x - mean) / std, as torchvision.transforms.v2.Normalize.

    The input must be of a float dtype. `data.layout` says which axis holds the channels. `mean` and
    `std` have the same length.

    Attributes:
        mean: One number a channel, in the scale of the image (0 to 1 after to_dtype with scale).
            One number alone is for all channels.
        std: One number a channel, in the scale of the image (0 to 1 after to_dtype with scale).
            Above 0. One number alone is for all channels.
    """

    mean: Value
    std: PositiveChannels

    example = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
    can_run_on_batches = True
    speed_advice = (
        "leave it out with to_dtype, and do both on the GPU: a batch of uint8 is a quarter of one "
        "of float32"
    )

    @model_validator(mode="after")
    def _same_length(self) -> Normalize:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} numbers and std has {len(self.std)}: write one "
                "a channel in both"
            )
        return self

    def infer_spec(self, input_spec: Spec) -> Spec:
        if check_decoded(input_spec).dtype not in DTYPES_TAKEN["normalize"]:
            raise StepIncompatibleError(
                f"it needs floats, but gets {input_spec.dtype}: write 'to_dtype: {{dtype: "
                f"float32, scale: true}}' before it"
            )
        if PAIR in input_spec.layout and any(self.mean):
            raise StepIncompatibleError(
                "mean would also be subtracted from the imaginary parts: write mean: 0"
            )
        check_channels(check_per_channel("mean", self.mean, input_spec))
        return input_spec.with_values("normalized")

    def explain_doubt(self, input_spec: Spec) -> str:
        is_for_scaled = all(abs(n) <= 1 for n in self.mean) and all(n <= 1 for n in self.std)
        if input_spec.pixels.values != "unscaled" or not is_for_scaled:
            return ""
        return (
            f"mean {shown(list(self.mean))} is for pixels of 0 to 1, but here they are unscaled, "
            "as 0 to 255: write 'to_dtype: {dtype: float32, scale: true}' before it"
        )

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec:
        return of_any_size(input_spec).with_values("normalized")

    def lower(self, image: Primitives, p: Params) -> None:
        image.normalize(self.mean, self.std)

    def torch(self, image: Any, p: Params) -> Any:
        import torch

        mean, std = (
            to_device(torch.tensor(numbers, dtype=image.dtype), image.device).reshape(
                -1, *[1] * self._space
            )
            for numbers in (self.mean, self.std)
        )
        return image.sub(mean).div_(std)


def _is_float(dtype: str) -> bool:
    return dtype in (*FLOATS, "float64")


def _check_scale(stored: str, made: str) -> None:
    """Raise StepIncompatibleError if torchvision cannot scale from dtype `stored` to dtype `made`.

    This includes pairs of dtypes for which torchvision returns infinities or zeros.
    """
    unscaled = next((dtype for dtype in (stored, made) if dtype in _UNSCALED), None)
    if unscaled:
        raise StepIncompatibleError(
            f"{unscaled} has no scale: set scale: false, and divide with 'normalize'"
        )
    if (stored, made) in _TOO_LARGE:
        raise StepIncompatibleError(
            f"{stored} cannot hold the range of {made}: set scale: false, or take a smaller dtype"
        )
    if stored == "float16" and not _is_float(made):
        raise StepIncompatibleError(
            f"float16 is too coarse for the range of {made}: write 'to_dtype: {{dtype: "
            f"float32}}' before it"
        )
    if made == "float16" and stored in _BEYOND_HALF:
        raise StepIncompatibleError(
            f"float16 cannot hold the range of {stored}: write 'to_dtype: {{dtype: float32, "
            f"scale: true}}' before it"
        )


def _integers(image: Tensor, dtype: torch.dtype, scale: bool) -> Tensor:
    """Convert to an integer dtype: truncate floats, and clamp to the range of `dtype`."""
    import torch

    bounds = torch.iinfo(dtype)
    if image.is_floating_point():
        return _truncate(image * (bounds.max + 1.0 - _LESS_THAN_ONE) if scale else image, dtype)
    added_bits = int(bounds.max).bit_length() - int(torch.iinfo(image.dtype).max).bit_length()
    shift = added_bits if scale else 0
    largest = min(bounds.max, torch.iinfo(torch.int64).max)
    wide = (_to_int64(image) >> max(-shift, 0)).clamp(bounds.min, largest)
    return (wide << max(shift, 0)).to(dtype)


def _to_int64(image: Tensor) -> Tensor:
    """Convert to int64, clamped: torch cannot compute with larger integers."""
    import torch

    if image.dtype != torch.uint64:
        return image.to(torch.int64)
    signed = image.view(torch.int64)
    return signed.masked_fill(signed < 0, torch.iinfo(torch.int64).max)


def _truncate(image: Tensor, dtype: torch.dtype) -> Tensor:
    import torch

    bounds = torch.iinfo(dtype)
    wide = image.double().nan_to_num(nan=0.0)
    highest = float(bounds.max)
    if highest > bounds.max:
        highest = float(np.nextafter(highest, 0.0))
    integers = wide.clamp(bounds.min, highest).to(dtype)
    if highest < bounds.max:  # float64 cannot hold the largest int64 or uint64: write its bits
        largest = bounds.max if bounds.min else -1
        integers.view(torch.int64).masked_fill_(wide >= bounds.max, largest)
    return integers
