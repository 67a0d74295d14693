"""mixup and cutmix mix each sample with an earlier sample of the batch; one_hot smooths labels.

Sample i is mixed with sample i - k, and the first k samples with the last k. k is the `shift`: 1,
as in torchvision, or more if neighbours are views of the same sample (`loader.repeats`). The share
of sample i is drawn from a symmetric beta distribution.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpupipe.batch_stage.batch_step import BatchStep, MixFunctions, Sizes
from gpupipe.dataset.spec import FLOATS
from gpupipe.pipeline.step import Params, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.schema.field_types import Positive, Probability

if TYPE_CHECKING:
    from torch import Tensor


class Mixup(BatchStep):
    """Mix images and labels as torchvision.transforms.v2.MixUp (Zhang et al. 2018).

    `lam` is drawn from Beta(alpha, alpha), once per batch. Sample i becomes
    lam * x[i] + (1 - lam) * x[i - k]. k is 1 unless `loader.repeats` is set; then k is the length
    of the longest run of views of one sample. So the result depends on all samples of the batch.

    Attributes:
        alpha: Both parameters of the beta distribution, above 0. The default is 1, the uniform
            distribution; the smaller it is, the less is mixed.
    """

    alpha: Positive = 1.0

    num_uniforms = 2
    mixes_samples = True
    is_thread_safe = True

    def check(self, fields: Mapping[str, Spec]) -> None:
        for name, field in fields.items():
            if field.kind == "mask":
                raise StepIncompatibleError(
                    f"the field '{name}' is a mask, and a mean of class numbers is no class: leave "
                    f"'{name}' out of 'on:', or write 'cutmix', which moves masks too"
                )
            if field.dtype not in (*FLOATS, "float64"):
                raise StepIncompatibleError(
                    f"it needs floats, but '{name}' is {field.dtype}: write 'to_dtype: "
                    "{dtype: float32, scale: true}' as the last step of the pipeline"
                )

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `lam`, float64 (N,) for N batches.

        `lam` is the weight of x[i] in its mix with x[i - k].
        """
        return {"lam": symmetric_beta(u, self.alpha)}

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        mix = partial(mix_with_earlier, float(p["lam"]), p["shift"])
        return MixFunctions(mix, mix)


class Cutmix(BatchStep):
    """Paste boxes and mix labels as torchvision.transforms.v2.CutMix (Yun et al. 2019).

    All samples have the same box. Its center is drawn uniformly. Its share of the image's area is
    1 - lam, with lam drawn from Beta(alpha, alpha), but the box is cut off at the border. Labels
    are mixed by the area that is left. Sample i gets its box from sample i - k. k is 1 unless
    `loader.repeats` is set; then k is the length of the longest run of views of one sample. So the
    result depends on all samples of the batch.

    Images may have any dtype. Fields that are masks get the same box.

    Attributes:
        alpha: Both parameters of the beta distribution, above 0. The default is 1, the uniform
            distribution; the smaller it is, the nearer the box is to nothing or to all.
    """

    alpha: Positive = 1.0

    num_uniforms = 4
    mixes_samples = True
    is_thread_safe = True

    def check(self, fields: Mapping[str, Spec]) -> None:
        for name, field in fields.items():
            if not set("HW") <= set(field.layout):
                raise StepIncompatibleError(
                    f"it needs images, but '{name}' has the layout {field.layout or 'of one'}"
                    ", without height and width: name other fields in 'on:', or write 'mixup'"
                )
        sizes = {name: (field.height, field.width) for name, field in fields.items()}
        _check_sizes({name: size for name, size in sizes.items() if None not in size})

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict of `lam`, `x` and `y`, each float64 (N,) for N batches.

        1 - lam is the box's share of the image's area before it is cut off at the border.
        x and y are the box's center, as shares of width and height.
        """
        return {"lam": symmetric_beta(u[:, :2], self.alpha), "x": u[:, 2], "y": u[:, 3]}

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        _check_sizes(sizes)
        height, width = next(iter(sizes.values()))
        box, outside = find_box(height, width, p)
        shift = p["shift"]
        return MixFunctions(
            partial(paste_from_earlier, box, shift), partial(mix_with_earlier, outside, shift)
        )


class OneHot(BatchStep):
    """Make soft labels, float32 (B, classes), and leave the images alone.

    The share of every class is multiplied by 1 - label_smoothing, and label_smoothing / classes is
    added, as in timm.data.mixup.one_hot and torch.nn.CrossEntropyLoss. With mixup or cutmix the
    order does not matter: a mean of smoothed labels is the smoothed mean. Without smoothing, the
    step changes nothing if another step of the batch stage ran before. In a random_choice
    it leaves the batch unmixed.

    Attributes:
        label_smoothing: 0 to 1. The default is 0: one class has 1, all others have 0.
    """

    label_smoothing: Probability = 0.0

    is_thread_safe = True

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        if not self.label_smoothing:
            return MixFunctions()
        return MixFunctions(labels=partial(_smooth, self.label_smoothing, num_classes))


def _smooth(smoothing: float, num_classes: int, labels: Tensor) -> Tensor:
    import torch

    rest, kept = smoothing / num_classes, 1.0 - smoothing
    if labels.is_cpu:  # NumPy has less overhead than torch
        return torch.from_numpy(labels.numpy() * kept + rest)
    return labels * kept + rest


def find_box(height: int, width: int, p: Params) -> tuple[tuple[int, int, int, int], float]:
    """Compute the box that is pasted, as torchvision.transforms.v2.CutMix does.

    Args:
        height: Height of the images in pixels.
        width: Width of the images in pixels.
        p: lam, x and y of one batch, from `Cutmix.sample`.

    Returns:
        The box (left, top, right, bottom) in pixels, cut off at the border, and the share of the
        image's area outside the box, 0 to 1.
    """
    center_x, center_y = int(p["x"] * width), int(p["y"] * height)
    half = 0.5 * math.sqrt(1.0 - float(p["lam"]))
    half_width, half_height = int(half * width), int(half * height)
    left, right = max(center_x - half_width, 0), min(center_x + half_width, width)
    top, bottom = max(center_y - half_height, 0), min(center_y + half_height, height)
    outside = 1.0 - (right - left) * (bottom - top) / (width * height)
    return (left, top, right, bottom), outside


def _check_sizes(sizes: Mapping[str, tuple[int | None, ...]]) -> None:
    """Raise StepIncompatibleError if fields differ in size, (height, width)."""
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name}: {'x'.join(map(str, size))}" for name, size in sizes.items())
        raise StepIncompatibleError(
            f"the fields differ in height x width ({listed}): resize them to one size, or name "
            "only fields of one size in 'on:'"
        )


def mix_with_earlier(
    share: float, shift: int, x: Tensor, memory: BatchMemory | None = None
) -> Tensor:
    """Mix each sample i with sample i - `shift`, with the weights `share` and 1 - `share`.

    That is `share * x + (1 - share) * x.roll(shift, 0)`, as torchvision's MixUp computes it with a
    shift of 1. With `memory`, the rolled batch is never made, which cuts the memory traffic to a
    third; without, fewer calls of torch are made, of which each takes longer than small tensors do.

    Args:
        share: The weight of each sample itself, 0 to 1.
        shift: 1 to B - 1; or 0, which returns `x` itself.
        x: Floats (B, ...).
        memory: Allocates the result; None for a small `x`.
    """
    import torch

    if not shift:
        return x
    if memory is None:
        return torch.lerp(x.roll(shift, 0), x, share)
    mixed, others = memory.allocate_like(x), x.shape[0] - shift
    own, earlier = x.split_with_sizes([shift, others]), x.split_with_sizes([others, shift])
    results = mixed.split_with_sizes([shift, others])
    for n in (0, 1):
        torch.lerp(earlier[1 - n], own[n], share, out=results[n])
    return mixed


def paste_from_earlier(
    box: tuple[int, int, int, int], shift: int, x: Tensor, memory: BatchMemory | None = None
) -> Tensor:
    """Return a copy of `x` in which the box of sample i comes from sample i - `shift`.

    Args:
        box: (left, top, right, bottom) in pixels; right and bottom are exclusive.
        shift: 1 to B - 1; or 0, which returns `x` itself.
        x: (B, ..., H, W), of any dtype.
        memory: Allocates the result; None for new memory.
    """
    import torch

    if not shift:
        return x
    left, top, right, bottom = box
    others = x.shape[0] - shift
    mixed = torch.empty_like(x) if memory is None else memory.allocate_like(x)
    # All views first, before the pixels take the caches.
    pasted = mixed[..., top:bottom, left:right].split_with_sizes([shift, others])
    earlier = x[..., top:bottom, left:right].split_with_sizes([others, shift])
    mixed.copy_(x)
    for n in (0, 1):
        pasted[n].copy_(earlier[1 - n])
    return mixed


def symmetric_beta(u: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """Turn uniform draws into draws from Beta(alpha, alpha).

    The transform is exact for every alpha > 0, and rejects no draws. If T has Student's
    distribution with 2 alpha degrees of freedom, then 1/2 + T / (2 sqrt(2 alpha + T²)) has the
    distribution Beta(alpha, alpha) (L. Devroye, "Random variate generation in one line of code",
    1996). T comes from two uniforms by the polar method: T = sqrt(2 alpha (U^(-1/alpha) - 1))
    cos(2 pi V) (R. W. Bailey, "Polar generation of random variates with the t-distribution",
    Mathematics of Computation 62, 1994).

    Args:
        u: float64 (N, 2) in [0, 1).
        alpha: Both parameters of the distribution, above 0.

    Returns:
        float64 (N,) in [0, 1].
    """
    exponent = np.log1p(-u[:, 0]) / alpha
    q, one_minus_q = np.exp(exponent), -np.expm1(exponent)
    cosine = np.cos(2.0 * np.pi * u[:, 1])
    # With T² / (2 alpha + T²) = (1 - q) cos² / (q + (1 - q) cos²), no power of U overflows.
    total = q + one_minus_q * cosine**2
    root = np.sqrt(one_minus_q * cosine**2 / total)
    smaller = q / (total * 2.0 * (1.0 + root))
    drawn: NDArray[np.float64] = np.where(cosine < 0, smaller, 1.0 - smaller)
    return drawn
