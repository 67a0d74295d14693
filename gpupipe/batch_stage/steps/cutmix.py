"""cutmix: a box of each sample becomes that of an earlier sample of the batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpupipe.batch_stage.batch_step import BatchStep, Images, MixedBatch
from gpupipe.batch_stage.mixing import mix_with_earlier, paste_from_earlier, symmetric_beta
from gpupipe.pipeline.step import Params, Sampled, Spec, StepIncompatibleError, Uniforms
from gpupipe.schema.field_types import Positive

if TYPE_CHECKING:
    from torch import Tensor


class Cutmix(BatchStep):
    """Paste boxes and mix labels as torchvision.transforms.v2.CutMix (Yun et al. 2019).

    All samples have the same box. It would have 1 - lam of the area, with lam drawn from
    Beta(alpha, alpha), but it is cut off at the border; its center is drawn uniformly. Labels are
    mixed by the area that the box then has. The box is cut from the sample before; under
    `loader.repeats`, from the nearest one that is no view of the same sample. All of it depends on
    all samples of the batch.

    Images may have any dtype. Fields that are masks get the same box.

    Attributes:
        alpha: Both parameters of the beta distribution, above 0. The default is 1, the uniform
            distribution; the smaller it is, the nearer the box is to nothing or to all.
    """

    alpha: Positive = 1.0

    num_uniforms = 4
    mixes_samples = True

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
        """Draw lam, x and y, each float64 (N,) for N batches.

        1 - lam is the box's share of the image's area before it is cut off at the border.
        x and y are the box's center, as shares of width and height.
        """
        return {"lam": symmetric_beta(u[:, :2], self.alpha), "x": u[:, 2], "y": u[:, 3]}

    def torch(self, images: Images, labels: Tensor, p: Params) -> MixedBatch:
        sizes = {name: tuple(image.shape[-2:]) for name, image in images.items()}
        _check_sizes(sizes)
        height, width = next(iter(sizes.values()))
        box, lam = find_box(height, width, p)
        shift = p["shift"]
        pasted = {name: paste_from_earlier(image, box, shift) for name, image in images.items()}
        return pasted, mix_with_earlier(labels, lam, shift)


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
