"""random_iou_crop: cut a window that overlaps enough with one of the boxes."""

from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gpupipe.augment import noise
from gpupipe.augment.iou_windows import WindowRules, are_centers_inside, find_windows
from gpupipe.pipeline.spec_checks import check_plane
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.pipeline.tensors import cut
from gpupipe.schema.field_types import NUMBER, WHOLE, NotNegative, Positive

_Scale = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False), NUMBER]
_OPTIONS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


class RandomIoUCrop(Step):
    """Cut a window that overlaps with a box, as torchvision.transforms.v2.RandomIoUCrop.

    It is the crop of SSD (Liu et al. 2016). It draws a minimum overlap, then windows until one
    overlaps that much with a box whose centre lies in the window; if none of `trials` windows does,
    it begins again. torchvision may do so forever. Here the image stays whole after 50 rounds, or
    if it has no box. The boxes whose centre lies outside the window become [0, 0, 0, 0], so
    sanitize_bounding_boxes must follow. Output sizes differ between samples, so a resize must
    follow too. The step needs boxes, and takes the first field of boxes on the image.

    Attributes:
        min_scale: The window's sides relative to the image's are at least this, above 0 to 1. The
            default is 0.3.
        max_scale: The window's sides relative to the image's are at most this, above 0 to 1. The
            default is 1.
        min_aspect_ratio: The window's width / height is at least this. The default is 0.5.
        max_aspect_ratio: The window's width / height is at most this. The default is 2.
        sampler_options: The minimum overlaps, intersection over union, from which each round draws
            one. 1 or more leaves the image whole. The default is [0, 0.1, 0.3, 0.5, 0.7, 0.9, 1].
        trials: How many windows a round tries, 1 to 1000. The default is 40.
    """

    min_scale: _Scale = 0.3
    max_scale: _Scale = 1.0
    min_aspect_ratio: Positive = 0.5
    max_aspect_ratio: Positive = 2.0
    sampler_options: Annotated[tuple[NotNegative, ...], Field(min_length=1)] | None = None
    trials: Annotated[int, Field(ge=1, le=1000), WHOLE] = 40

    num_uniforms = 1
    needs = frozenset({"boxes"})
    empties_boxes = True
    decided = {"crops": 0, "anchor": [0.0, 0.0], "shape": [1.0, 1.0]}

    @model_validator(mode="after")
    def _ranges_are_ordered(self) -> Self:
        for name in ("scale", "aspect_ratio"):
            low, high = getattr(self, f"min_{name}"), getattr(self, f"max_{name}")
            if low > high:
                raise ValueError(f"min_{name} is {low:g}, but max_{name} is {high:g}: swap them")
        return self

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `seed`, int64 (B,), the seed of the windows of each of B samples."""
        return {"seed": noise.draw_seeds(u[:, 0])}

    def infer_spec(self, input_spec: Spec) -> Spec:
        least = [max(int(n * self.min_scale), 1) for n in check_plane(input_spec).at_least]
        return input_spec.with_size((None, None), tuple(least))

    def decide(self, image: Primitives, p: Params) -> Sampled:
        """Find the window of each sample.

        Returns:
            A dict of arrays for B samples:
            `crops`: int64 (B,), 1 for the samples that are cropped, 0 for those that stay whole.
            `anchor`: float64 (B, 2), [top, left] of the window in pixels.
            `shape`: float64 (B, 2), [height, width] of the window in pixels.
        """
        assert image.annotations is not None
        name = image.annotations.names("boxes")[0]
        rules = WindowRules(
            self.min_scale,
            self.max_scale,
            self.min_aspect_ratio,
            self.max_aspect_ratio,
            self.sampler_options or _OPTIONS,
            self.trials,
        )
        size = np.broadcast_to(image.size, (len(p["seed"]), 2))
        boxes, offsets = image.annotations.values(name), image.annotations.offsets(name)
        windows = find_windows(boxes, offsets, size, p["seed"], rules)
        crops = windows.is_cropped.astype(np.int64)
        return {"crops": crops, "anchor": windows.anchor, "shape": windows.shape}

    def lower(self, image: Primitives, p: Params) -> None:
        def crop(part: Primitives) -> None:
            is_outside = self._find_outside(part, p)
            part.crop(p["anchor"], p["shape"])
            if part.annotations is not None and is_outside is not None:
                name = part.annotations.names("boxes")[0]
                boxes = part.annotations.values(name)
                part.annotations.replace(name, np.where(is_outside[:, None], 0.0, boxes))

        image.switch(p["crops"], [lambda part: None, crop])

    def _find_outside(self, image: Primitives, p: Params) -> NDArray[np.bool_] | None:
        """Return whether each box of a cropped sample has its centre outside the window.

        None on a back end that processes pixels.
        """
        if image.annotations is None:
            return None
        name = image.annotations.names("boxes")[0]
        boxes, samples = image.annotations.values(name), image.annotations.samples(name)
        is_inside = are_centers_inside(boxes, p["anchor"][samples], p["shape"][samples])
        is_outside: NDArray[np.bool_] = image.present[samples] & ~is_inside
        return is_outside

    def torch(self, image: Any, p: Params) -> Any:
        return cut(image, p["anchor"], p["shape"]) if p["crops"] else image
