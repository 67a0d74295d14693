"""AugmentPolicy: the base of steps that draw operations from a table, such as rand_augment.

A policy has slots that follow each other. `sample` draws an operation and a value for each sample
and slot; see policy_ops.py for what they mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.policy_ops import Warping, apply_op, lower_op, op_numbers
from gpupipe.pipeline.spec_checks import check_color, check_per_channel, check_picture
from gpupipe.pipeline.step import Params, Primitives, Spec, Step
from gpupipe.schema.field_types import Fill, Resampling

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]


class AugmentPolicy(Step):
    """The base of steps that draw operations. They work on uint8 images of 1 or 3 channels.

    On a mask, the operations that move pixels take nearest pixels, and those that change colours
    leave it alone.

    Subclasses define `op_names` and `sample`, which returns op (B, slots), int32, and value
    (B, slots), float64.

    Attributes:
        interpolation: "nearest" (the default) or "bilinear", for the operations that move pixels.
        fill: The value outside the image, 0 to 255: one number, or one per channel. The default
            is black.
    """

    interpolation: Resampling = "nearest"
    fill: Fill | None = None

    interpolates = True
    has_whole_shifts: ClassVar[bool] = True

    @property
    def op_names(self) -> Sequence[str]:
        """The operations that a sample may draw."""
        raise NotImplementedError

    @property
    def warping(self) -> Warping:
        """How the operations that move pixels compute them."""
        return Warping(self.interpolation, self.fill, self.has_whole_shifts)

    def infer_spec(self, input_spec: Spec) -> Spec:
        if input_spec.kind == "mask":
            check_picture(input_spec)
        else:
            check_color(input_spec, ("uint8",))
        return input_spec if self.fill is None else check_per_channel("fill", self.fill, input_spec)

    def lower(self, image: Primitives, p: Params) -> None:
        for slot in range(p["op"].shape[-1]):
            self.lower_slot(image, p["op"][:, slot], p["value"][:, slot])

    def lower_slot(self, image: Primitives, op: Ints, value: Floats) -> None:
        """Apply one operation to each sample of a batch."""
        lower_op(image, self.op_names, op, value, self.warping, self._kind != "mask")

    def torch(self, image: Any, p: Params) -> Any:
        for op, value in zip(p["op"], p["value"], strict=True):
            image = self.torch_slot(image, op, value)
        return image

    def torch_slot(self, image: Any, op: Any, value: Any) -> Any:
        """Apply one operation to an image in torch."""
        return apply_op(image, int(op), float(value), self.warping, self._kind != "mask")


@dataclass(frozen=True)
class OpTable:
    """The operations of a torchvision policy, each with a value per magnitude bin.

    Attributes:
        names: The operations.
        magnitudes: float64 (operations, bins).
        is_signed: Whether a draw decides the sign of the magnitude, bool (operations,).
        neutral: What the signed magnitude is added to, float64 (operations,).
    """

    names: tuple[str, ...]
    magnitudes: Floats
    is_signed: NDArray[np.bool_]
    neutral: Floats

    def look_up(self, index: Any, magnitude_bin: Any, is_negative: Any) -> dict[str, Any]:
        """Return op and value of draws.

        Args:
            index: The drawn operations, as positions in `names`.
            magnitude_bin: The drawn magnitude bins, of the same shape.
            is_negative: Whether the sign of a signed magnitude is negative, of the same shape.

        Returns:
            op: int32, the operations as numbers in OPS.
            value: float64, their values.
        """
        sign = np.where(self.is_signed[index] & is_negative, -1.0, 1.0)
        value = self.neutral[index] + sign * self.magnitudes[index, magnitude_bin]
        return {"op": op_numbers(self.names)[index], "value": value}


@dataclass(frozen=True)
class Magnitudes:
    """The largest magnitudes of a torchvision policy, from which its table follows.

    Attributes:
        shear: The tangent of the shear angle.
        translate: The name of the operation without X or Y's suffix: "" for pixels, "Rel" for a
            fraction of the size; and the shift in that unit.
        rotate: Degrees.
        enhance: The change of the factor of Brightness, Color, Contrast and Sharpness.
        posterize: Bits at the first bin, and how many fewer at the last.
    """

    shear: float
    translate: tuple[str, float]
    rotate: float
    enhance: float
    posterize: tuple[int, int]


RAND_AUGMENT_MAGNITUDES = Magnitudes(0.3, ("Rel", 150.0 / 331.0), 30.0, 0.9, (8, 4))
"""Those of torchvision's AutoAugment and RandAugment."""
RAND_AUGMENT_OPS = tuple(
    """Identity ShearX ShearY TranslateX TranslateY Rotate Brightness Color Contrast Sharpness
    Posterize Solarize AutoContrast Equalize""".split()
)
"""The operations of torchvision's RandAugment and TrivialAugmentWide."""
_ENHANCING = ("Brightness", "Color", "Contrast", "Sharpness")


@cache
def make_table(names: tuple[str, ...], largest: Magnitudes, num_bins: int) -> OpTable:
    """Return the table of a torchvision policy.

    Args:
        names: torchvision's names of the operations.
        largest: The largest magnitudes.
        num_bins: The number of magnitude bins, at least 2.
    """
    kind, shift = largest.translate
    first, fewer = largest.posterize
    bins = np.arange(num_bins, dtype=np.float32)
    rows = {
        "Shear": linspace(0.0, largest.shear, num_bins),
        "Translate": np.linspace(0.0, shift, num_bins) if kind else linspace(0.0, shift, num_bins),
        "Rotate": linspace(0.0, largest.rotate, num_bins),
        "Posterize": np.rint(first - bins / np.float32((num_bins - 1) / fewer)).astype(np.float64),
        "Solarize": 255.0 * linspace(1.0, 0.0, num_bins),
        **dict.fromkeys(_ENHANCING, linspace(0.0, largest.enhance, num_bins)),
    }
    keys = [name.removesuffix("X").removesuffix("Y") for name in names]
    is_moving = [key in ("Shear", "Translate", "Rotate") for key in keys]
    is_enhancing = [name in _ENHANCING for name in names]
    return OpTable(
        tuple(f"{name}{kind}" if "Translate" in name else name for name in names),
        np.stack([rows.get(key, np.zeros(num_bins)) for key in keys]),
        np.array(is_moving) | is_enhancing,
        np.array(is_enhancing, np.float64),
    )


def linspace(start: float, end: float, count: int) -> Floats:
    """Return `count` numbers from `start` to `end`, float32 as torch.linspace rounds them.

    torch counts from the nearer end, and rounds once: its CPU kernel multiplies and adds in one
    instruction.
    """
    low, high = np.float32(start), np.float32(end)
    step = float((high - low) / np.float32(count - 1))
    n = np.arange(count)
    numbers = np.where(n < count // 2, float(low) + step * n, float(high) - step * (count - 1 - n))
    return numbers.astype(np.float32).astype(np.float64)


def choose(u: Floats, count: int) -> NDArray[np.int64]:
    """Turn uniform draws into numbers from 0 to count - 1, all equally probable."""
    numbers: NDArray[np.int64] = np.minimum((u * count).astype(np.int64), count - 1)
    return numbers
