"""Tables of policies: the magnitudes of the operations, and the sub-policies of AutoAugment.

A magnitude bin is a number that stands for the strength of an operation. A sub-policy is a pair of
operations, each with a probability and a level; operations without a level have level 0 here.
IMAGENET, CIFAR10 and SVHN are torchvision's tables (AutoAugment._get_policies), from the paper's
appendix (https://arxiv.org/abs/1805.09501). V0 is timm's `v0` (auto_augment_policy_v0), from the
EfficientNet implementation for TPUs.
"""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.augment.policy_ops import op_numbers
from gpupipe.pipeline.step import Sampled

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class OpTable:
    """The operations of a torchvision policy, and the value of each at every strength.

    A magnitude bin is a number that stands for a strength.

    Attributes:
        names: The operations.
        magnitudes: The magnitude of each operation in each bin, float64 (operations, bins).
        is_signed: Whether a draw decides the sign of the magnitude, bool (operations,).
        neutral: The value to which the signed magnitude is added, float64 (operations,).
    """

    names: tuple[str, ...]
    magnitudes: Floats
    is_signed: NDArray[np.bool_]
    neutral: Floats

    def get(self, index: Any, magnitude_bin: Any, u: Floats) -> Sampled:
        """Return a dict of two arrays, `op` and `value`, that describe drawn operations.

        Args:
            index: The drawn operations, as positions in `names`.
            magnitude_bin: The drawn magnitude bins, of the same shape.
            u: Uniform draws of the same shape. Below 0.5 a signed magnitude is negative.

        Returns:
            op: int32, the number of each operation in OPS.
            value: float64, the value of each operation.
        """
        sign = np.where(self.is_signed[index] & (u < 0.5), -1.0, 1.0)
        value = self.neutral[index] + sign * self.magnitudes[index, magnitude_bin]
        return {"op": _list_numbers(self.names)[index], "value": value}


_list_numbers = lru_cache(maxsize=64)(op_numbers)


@dataclass(frozen=True)
class Magnitudes:
    """The largest magnitudes of a torchvision policy. `make_table` makes a table from them.

    Attributes:
        shear: The tangent of the shear angle.
        translate: ("", shift in pixels) for TranslateX and TranslateY, or ("Rel", shift as a
            fraction of the size) for TranslateXRel and TranslateYRel.
        rotate: The angle in degrees.
        enhance: The change of the factor of Brightness, Color, Contrast and Sharpness.
        posterize: The bits to keep at the first bin, and how many fewer to keep at the last.
    """

    shear: float
    translate: tuple[str, float]
    rotate: float
    enhance: float
    posterize: tuple[int, int]


RAND_AUGMENT_MAGNITUDES = Magnitudes(0.3, ("Rel", 150.0 / 331.0), 30.0, 0.9, (8, 4))
"""The largest magnitudes of torchvision's AutoAugment and RandAugment."""
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
        largest: The magnitudes that the bins lead up to.
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
    """Return `count` numbers from `start` to `end` in float64, rounded as torch.linspace does.

    Like torch, this counts from the nearer end, and rounds to float32 once: torch's CPU kernel
    multiplies and adds in one instruction.
    """
    low, high = np.float32(start), np.float32(end)
    spacing = float((high - low) / np.float32(count - 1))
    n = np.arange(count)
    numbers = np.where(
        n < count // 2, float(low) + spacing * n, float(high) - spacing * (count - 1 - n)
    )
    return numbers.astype(np.float32).astype(np.float64)


def choose(u: Floats, count: int) -> NDArray[np.int64]:
    """Turn uniform draws into numbers from 0 to count - 1, all equally probable."""
    numbers: NDArray[np.int64] = np.minimum((u * count).astype(np.int64), count - 1)
    return numbers


SubPolicies = tuple[tuple[tuple[str, float, int], ...], ...]


def _parse(table: str) -> SubPolicies:
    """Parse sub-policies such as "Posterize 0.4 8, Rotate 0.6 9", with semicolons between them."""
    return tuple(
        tuple((name, float(p), int(level)) for name, p, level in map(str.split, pair.split(",")))
        for pair in table.split(";")
    )


@cache
def to_arrays(
    policies: SubPolicies, names: tuple[str, ...]
) -> tuple[NDArray[np.int64], Floats, NDArray[np.int64]]:
    """Convert sub-policies to arrays: positions in `names`, probabilities and levels.

    Each array is (sub-policies, operations). A shorter sub-policy is padded with the
    operation `names[0]` at probability 0.
    """
    slots = max(map(len, policies))
    padded = [(*ops, *[(names[0], 0.0, 0)] * (slots - len(ops))) for ops in policies]
    index = np.array([[names.index(name) for name, _, _ in ops] for ops in padded])
    probability = np.array([[p for _, p, _ in ops] for ops in padded])
    return index, probability, np.array([[level for _, _, level in ops] for ops in padded])


IMAGENET = _parse("""
    Posterize 0.4 8, Rotate 0.6 9; Solarize 0.6 5, AutoContrast 0.6 0;
    Equalize 0.8 0, Equalize 0.6 0; Posterize 0.6 7, Posterize 0.6 6;
    Equalize 0.4 0, Solarize 0.2 4; Equalize 0.4 0, Rotate 0.8 8; Solarize 0.6 3, Equalize 0.6 0;
    Posterize 0.8 5, Equalize 1.0 0; Rotate 0.2 3, Solarize 0.6 8; Equalize 0.6 0, Posterize 0.4 6;
    Rotate 0.8 8, Color 0.4 0; Rotate 0.4 9, Equalize 0.6 0; Equalize 0.0 0, Equalize 0.8 0;
    Invert 0.6 0, Equalize 1.0 0; Color 0.6 4, Contrast 1.0 8; Rotate 0.8 8, Color 1.0 2;
    Color 0.8 8, Solarize 0.8 7; Sharpness 0.4 7, Invert 0.6 0; ShearX 0.6 5, Equalize 1.0 0;
    Color 0.4 0, Equalize 0.6 0; Equalize 0.4 0, Solarize 0.2 4; Solarize 0.6 5, AutoContrast 0.6 0;
    Invert 0.6 0, Equalize 1.0 0; Color 0.6 4, Contrast 1.0 8; Equalize 0.8 0, Equalize 0.6 0
""")
CIFAR10 = _parse("""
    Invert 0.1 0, Contrast 0.2 6; Rotate 0.7 2, TranslateX 0.3 9; Sharpness 0.8 1, Sharpness 0.9 3;
    ShearY 0.5 8, TranslateY 0.7 9; AutoContrast 0.5 0, Equalize 0.9 0;
    ShearY 0.2 7, Posterize 0.3 7; Color 0.4 3, Brightness 0.6 7; Sharpness 0.3 9, Brightness 0.7 9;
    Equalize 0.6 0, Equalize 0.5 0; Contrast 0.6 7, Sharpness 0.6 5; Color 0.7 7, TranslateX 0.5 8;
    Equalize 0.3 0, AutoContrast 0.4 0; TranslateY 0.4 3, Sharpness 0.2 6;
    Brightness 0.9 6, Color 0.2 8; Solarize 0.5 2, Invert 0.0 0; Equalize 0.2 0, AutoContrast 0.6 0;
    Equalize 0.2 0, Equalize 0.6 0; Color 0.9 9, Equalize 0.6 0; AutoContrast 0.8 0, Solarize 0.2 8;
    Brightness 0.1 3, Color 0.7 0; Solarize 0.4 5, AutoContrast 0.9 0;
    TranslateY 0.9 9, TranslateY 0.7 9; AutoContrast 0.9 0, Solarize 0.8 3;
    Equalize 0.8 0, Invert 0.1 0; TranslateY 0.7 9, AutoContrast 0.9 0
""")
SVHN = _parse("""
    ShearX 0.9 4, Invert 0.2 0; ShearY 0.9 8, Invert 0.7 0; Equalize 0.6 0, Solarize 0.6 6;
    Invert 0.9 0, Equalize 0.6 0; Equalize 0.6 0, Rotate 0.9 3; ShearX 0.9 4, AutoContrast 0.8 0;
    ShearY 0.9 8, Invert 0.4 0; ShearY 0.9 5, Solarize 0.2 6; Invert 0.9 0, AutoContrast 0.8 0;
    Equalize 0.6 0, Rotate 0.9 3; ShearX 0.9 4, Solarize 0.3 3; ShearY 0.8 8, Invert 0.7 0;
    Equalize 0.9 0, TranslateY 0.6 6; Invert 0.9 0, Equalize 0.6 0; Contrast 0.3 3, Rotate 0.8 4;
    Invert 0.8 0, TranslateY 0.0 2; ShearY 0.7 6, Solarize 0.4 8; Invert 0.6 0, Rotate 0.8 4;
    ShearY 0.3 7, TranslateX 0.9 3; ShearX 0.1 6, Invert 0.6 0; Solarize 0.7 2, TranslateY 0.6 7;
    ShearY 0.8 4, Invert 0.8 0; ShearX 0.7 9, TranslateY 0.8 3; ShearY 0.8 5, AutoContrast 0.7 0;
    ShearX 0.7 2, Invert 0.1 0
""")
V0 = _parse("""
    Equalize 0.8 0, ShearY 0.8 4; Color 0.4 9, Equalize 0.6 0; Color 0.4 1, Rotate 0.6 8;
    Solarize 0.8 3, Equalize 0.4 0; Solarize 0.4 2, Solarize 0.6 2; Color 0.2 0, Equalize 0.8 0;
    Equalize 0.4 0, SolarizeAdd 0.8 3; ShearX 0.2 9, Rotate 0.6 8; Color 0.6 1, Equalize 1.0 0;
    Invert 0.4 0, Rotate 0.6 0; Equalize 1.0 0, ShearY 0.6 3; Color 0.4 7, Equalize 0.6 0;
    Posterize 0.4 6, AutoContrast 0.4 0; Solarize 0.6 8, Color 0.6 9; Solarize 0.2 4, Rotate 0.8 9;
    Rotate 1.0 7, TranslateYRel 0.8 9; ShearX 0.0 0, Solarize 0.8 4; ShearY 0.8 0, Color 0.6 4;
    Color 1.0 0, Rotate 0.6 2; Equalize 0.8 0, Equalize 0.0 0; Equalize 1.0 0, AutoContrast 0.6 0;
    ShearY 0.4 7, SolarizeAdd 0.6 7; Posterize 0.8 2, Solarize 0.6 10;
    Solarize 0.6 8, Equalize 0.6 0; Color 0.8 6, Rotate 0.4 5
""")
