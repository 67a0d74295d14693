"""resize and random_resized_crop: make an image of a fixed size, or with a fixed shorter side."""

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, model_validator

from gpupipe.pipeline.geometry import longer_side, shorter_side
from gpupipe.pipeline.geometry_step import ResamplingStep, torch_interpolation
from gpupipe.pipeline.random_windows import choose_windows, draw_windows, take_first
from gpupipe.pipeline.spec_checks import check_resampling
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Uniforms
from gpupipe.schema.field_types import PositiveRange, Side, Size

_TRIES = 10


def _alone(value: Any) -> Any:
    """Unpack [n]: as in torchvision, [n] sets the length of the shorter side, and not a square."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


class Resize(ResamplingStep):
    """Resample to another size, as torchvision.transforms.v2.Resize.

    Attributes:
        size: One number sets the shorter side and keeps the aspect ratio; [height, width] sets
            both sides. In pixels, each 1 to 65535. null sets the longer side to `max_size`.
        interpolation: "nearest", "bilinear" (the default) or "bicubic".
        max_size: The largest length of the longer side in pixels. It must be larger than `size`,
            which must be one number, or null. The default is no limit.
        antialias: Low-pass before shrinking. The default is true, and bicubic requires it.
    """

    size: Annotated[Side | Size | None, BeforeValidator(_alone)]
    max_size: Side | None = None

    example = {"size": 100}

    @model_validator(mode="after")
    def _max_size_goes_with_one_number(self) -> "Resize":
        if self.size is None:
            if self.max_size is None:
                raise ValueError("size is empty, but should be one number, or [height, width]")
        elif self.max_size is not None and (
            not isinstance(self.size, int) or self.max_size <= self.size
        ):
            raise ValueError(
                f"max_size is {self.max_size}, but goes only with one number as size, and "
                "must be larger than it"
            )
        return self

    def infer_spec(self, input_spec: Spec) -> Spec:
        check_resampling(input_spec)
        if isinstance(self.size, tuple):
            return input_spec.with_size(self.size)
        if input_spec.size:
            height, width = (int(n) for n in self.shape(np.array(input_spec.size, np.float64)))
            return input_spec.with_size((height, width))
        min_side = 1 if self.max_size or self.size is None else self.size
        return input_spec.with_size((None, None), (min_side, min_side))

    def shape(self, size: Any) -> Any:
        """Return the output's [height, width] in pixels for an image of `size` [height, width]."""
        if self.size is None:
            return longer_side(size, self.max_size)
        assert isinstance(self.size, int)
        return shorter_side(size, self.size, self.max_size)

    def lower(self, image: Primitives, p: Params) -> None:
        shape = self.size if isinstance(self.size, tuple) else self.shape(image.size)
        image.resize(shape, self.interpolation, self.antialias)

    def torch(self, image: Any, p: Params) -> Any:
        from torchvision.transforms.v2 import functional as F

        size = self.size
        if not isinstance(size, tuple):
            size = self.shape(np.array(image.shape[-2:], np.float64)).astype(int).tolist()
        mode = torch_interpolation(self.interpolation)
        return F.resize(image, list(size), mode, antialias=self.antialias)


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
            A dict of float64 arrays for B samples:
            `factors`: (B, 10, 2), [height, width] of the ten windows, each divided by the square
                root of the image's area.
            `position`: (B, 2), [top, left] as fractions of the free space around the window, in
                [0, 1).
        """
        areas, ratios, position = u[:, :_TRIES], u[:, _TRIES : 2 * _TRIES], u[:, 2 * _TRIES :]
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
        chosen = choose_windows(p, size)
        if chosen is not None and chosen[1]:
            return chosen[0][:, :2], chosen[0][:, 2:]
        height, width = size[..., 0], size[..., 1]
        tries = np.rint(p["factors"] * np.sqrt(height * width)[..., None, None])
        fits = ((tries <= size[..., None, :]) & (tries > 0)).all(-1)
        any_fits = fits.any(-1)[..., None]
        shape = take_first(tries, fits)
        if any_fits.all():
            return np.floor(p["position"] * (size - shape + 1.0)), shape
        lowest, highest = self.ratio
        whole = np.minimum(size, np.rint(np.stack([width / lowest, height * highest], -1)))
        shape = np.where(any_fits, shape, whole)
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
