"""Draws of augmentation policies, ours and torchvision's: whether they have one distribution."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.augment.policy import AugmentPolicy
from gpupipe.augment.policy_ops import OPS
from helpers.full_product import IS_FULL

COUNT = 20_000
RECORDED = COUNT if IS_FULL else 6_000
"""Draws of torchvision, each of which costs as much as a thousand of ours."""
SIDE = 9
"""Of the images whose sizes torchvision's magnitudes depend on."""
_ENHANCING = ("Brightness", "Color", "Contrast", "Sharpness")
_FEWEST = 10
"""Categories that both samples have more seldom are taken together."""

Drawn = tuple[str, float]
"""torchvision's name of an operation, and its signed magnitude."""


def sampled(step: AugmentPolicy, count: int = COUNT) -> dict[str, NDArray[Any]]:
    """What a step draws for so many samples."""
    return step.sample(np.random.default_rng(0).random((count, step.num_uniforms)))


def names_and_magnitudes(op: Any, value: Any) -> tuple[Drawn, ...]:
    """The operations of one sample but Identity, in torchvision's terms, for images of SIDE."""
    return tuple(_in_torchvisions_terms(OPS[o], v) for o, v in zip(op, value, strict=True) if o)


def _in_torchvisions_terms(name: str, value: float) -> Drawn:
    if name.startswith("Translate") and name.endswith("Rel"):
        return name.removesuffix("Rel"), value * SIDE
    if name in _ENHANCING:
        return name, value - 1.0
    return name, value / 255.0 if name == "Solarize" else value


def recorded(
    transform: type[Any], count: int = RECORDED, **options: Any
) -> list[tuple[Drawn, ...]]:
    """The operations but Identity that a class of torchvision draws for so many images."""

    class Recording(transform):  # type: ignore[misc]
        def _apply_image_or_video_transform(
            self, image: Any, transform_id: str, magnitude: float, *args: Any, **kwargs: Any
        ) -> Any:
            if transform_id != "Identity":
                drawn.append((transform_id, magnitude))
            return image

    recording, image, samples = Recording(**options), torch.zeros(1, SIDE, SIDE), []
    torch.manual_seed(0)
    for _ in range(count):
        drawn: list[Drawn] = []
        recording(image)
        samples.append(tuple(drawn))
    return samples


def rounded(samples: Iterable[tuple[Drawn, ...]]) -> list[Hashable]:
    """Draws as categories: float32 and float64 of a magnitude are one."""
    return [tuple((n, round(m, 3) + 0.0) for n, m in drawn) for drawn in samples]


def agree(ours: Iterable[Hashable], theirs: Iterable[Hashable]) -> bool:
    """Whether two samples of one size have one distribution: a chi-square test.

    The statistic has the mean k and the variance 2 k for k degrees of freedom. Five standard
    deviations above that occur by chance less than once in 100,000 tests.
    """
    a, b = Counter(ours), Counter(theirs)
    assert a.total() == b.total()
    both = {key: (a[key], b[key]) for key in a | b}
    pairs = [pair for pair in both.values() if sum(pair) >= _FEWEST]
    rest = np.array([pair for pair in both.values() if sum(pair) < _FEWEST]).reshape(-1, 2).sum(0)
    table = np.array([*pairs, rest] if rest.sum() >= _FEWEST else pairs, np.float64)
    if len(a | b) == 1:
        return a == b
    statistic = ((table[:, 0] - table[:, 1]) ** 2 / table.sum(1)).sum()
    freedom = len(table) - 1
    return bool(statistic < freedom + 5.0 * np.sqrt(2.0 * freedom))


def fits(sample: Iterable[Hashable], expected: Mapping[Hashable, float]) -> bool:
    """Whether a sample has the expected probabilities: a chi-square test, as in `agree`."""
    counts = Counter(sample)
    assert set(counts) <= {key for key, p in expected.items() if p > 0}
    keys = [key for key, p in expected.items() if p > 0]
    means = np.array([expected[key] for key in keys]) * counts.total()
    statistic = ((np.array([counts[key] for key in keys]) - means) ** 2 / means).sum()
    return bool(statistic < len(keys) - 1 + 5.0 * np.sqrt(2.0 * (len(keys) - 1)))
