"""random_resized_crop: resize a window of random area and aspect ratio (Inception's crop)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.pipeline.geometry import draw_windows, take_first
from gpupipe.pipeline.geometry_step import ResamplingStep, torch_interpolation
from gpupipe.pipeline.spec_checks import check_resampling
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Uniforms
from gpupipe.schema.field_types import PositiveRange, Size

_TRIES = 10


class RandomResizedCrop(ResamplingStep):
    """Resize a random window to a fixed size, as torchvision.transforms.v2.RandomResizedCrop.

    Like torchvision, it draws ten windows and takes the first that fits. If none fits, it takes the
    largest centred window whose aspect ratio lies within `ratio`.

    Attributes:
        size: The output's size: one number for a square, or [height, width], in pixels. Each side
            is 1 to 65535.
        scale: The window's share of the image's area, [min, max]. Both are above 0; drawn
            uniformly. The default is [0.08, 1].
        ratio: The window's width / height, [min, max], drawn log-uniformly. Both are above 0.
            The default is [3/4, 4/3].
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    size: Size
    scale: PositiveRange = (0.08, 1.0)
    ratio: PositiveRange = (3 / 4, 4 / 3)

    example = {"size": 200}
    num_uniforms = 2 * _TRIES + 2

    def sample(self, u: Uniforms) -> Sampled:
        """Draw ten windows for each sample, and a position.

        Returns:
            factors: (B, 10, 2), [height, width] of the ten windows, each divided by the square root
                of the image's area.
            position: (B, 2), [top, left] as fractions of the free space around the window, in
                [0, 1).
        """
        areas, ratios, position = np.split(u, (_TRIES, 2 * _TRIES), 1)
        factors = draw_windows(self.scale, self.ratio, areas, ratios)
        return {"factors": factors, "position": position}

    def infer_spec(self, input_spec: Spec) -> Spec:
        return check_resampling(input_spec).with_size(self.size)

    def window(self, p: Params, size: Any) -> tuple[Any, Any]:
        """Return [top, left] and [height, width] of the window in pixels.

        The window is the first drawn one that fits. If none fits, it is the largest centred one
        whose aspect ratio lies within `ratio`.

        Args:
            p: The arrays that `sample` returned.
            size: [height, width] of the image in pixels.
        """
        height, width = size[..., 0], size[..., 1]
        tries = np.rint(p["factors"] * np.sqrt(height * width)[..., None, None])
        fits = ((tries <= size[..., None, :]) & (tries > 0)).all(-1)
        lowest, highest = self.ratio
        whole = np.minimum(size, np.rint(np.stack([width / lowest, height * highest], -1)))
        any_fits = fits.any(-1)[..., None]
        shape = np.where(any_fits, take_first(tries, fits), whole)
        room = size - shape
        drawn_anchor, centred_anchor = np.floor(p["position"] * (room + 1.0)), np.floor(room / 2.0)
        return np.where(any_fits, drawn_anchor, centred_anchor), shape

    def lower(self, image: Primitives, p: Params) -> None:
        anchor, shape = self.window(p, image.size)
        image.crop(anchor, shape)
        image.resize(self.size, self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        anchor, shape = self.window(p, np.array(image.shape[-2:], np.float64))
        window: list[int] = [*anchor.astype(int).tolist(), *shape.astype(int).tolist()]
        mode = torch_interpolation(self.interpolation)
        return F.resized_crop(image, *window, list(self.size), mode, antialias=self.antialias)
