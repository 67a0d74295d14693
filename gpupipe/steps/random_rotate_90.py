"""random_rotate_90: turn images by a random multiple of 90 degrees."""

from typing import Any

import numpy as np

from gpupipe.pipeline.spec_checks import check_image, with_sides_swapped
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Step, Uniforms
from gpupipe.pipeline.tensors import flip
from gpupipe.schema.field_types import Probability


class RandomRotate90(Step):
    """Turn images by 0, 90, 180 or 270 degrees, as albumentations.RandomRotate90.

    The four angles are equally probable, and no pixel is interpolated. Images that are not square
    differ in size afterwards, so a crop or a resize must follow.

    Attributes:
        p: The probability that an angle is drawn, 0 to 1; otherwise the image stays as it is. The
            default is 0.5.
    """

    p: Probability = 0.5

    num_uniforms = 2

    def sample(self, u: Uniforms) -> Sampled:
        """Return a dict: `turns`, int32 (B,), the quarter turns of each sample, 0 to 3.

        They are counter-clockwise.
        """
        return {"turns": np.where(u[:, 0] < self.p, np.floor(u[:, 1] * 4), 0).astype(np.int32)}

    def infer_spec(self, input_spec: Spec) -> Spec:
        return with_sides_swapped(check_image(input_spec), min(self.p, 0.5))

    def lower(self, image: Primitives, p: Params) -> None:
        swaps, horizontal, vertical = _split(p["turns"])
        image.switch(swaps, [lambda part: None, lambda part: part.transpose()])
        image.flip(horizontal=horizontal, vertical=vertical)

    def torch(self, image: Any, p: Params) -> Any:
        swaps, *flips = _split(p["turns"])
        image = image.transpose(-2, -1) if swaps else image
        axes = [axis for axis, is_flipped in zip((-1, -2), flips, strict=True) if is_flipped]
        return flip(image, axes) if axes else image


def _split(turns: Any) -> tuple[Any, Any, Any]:
    """Return flags for the parts of quarter turns: a transpose, then a flip along each axis.

    Args:
        turns: Integers (...) from 0 to 3.

    Returns:
        int32 (...) each, 0 or 1: whether to transpose, to flip horizontally, and vertically.
    """
    turns = np.asarray(turns, np.int32)
    return turns % 2, (turns >= 2).astype(np.int32), (turns % 3 > 0).astype(np.int32)
