"""A case of benchmarks/steps.py: a step, and the transforms of other libraries that do the same.

The environments of AlbumentationsX and Albumentations, which import this, have no gpupipe.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Call = tuple[str, dict[str, Any]]
"""A transform's class and its arguments."""

SIDE = 512
"""Height and width of the photographs in pixels."""


@dataclass(frozen=True)
class Case:
    """A step, and the transforms of other libraries that do the same.

    Attributes:
        step: gpupipe's step, as in YAML.
        torchvision: The transforms of `torchvision.transforms.v2`, one after the other.
        albumentations: Transforms of Albumentations 2.0.8, of which the fastest counts. A list of
            transforms stands for one after the other.
        albumentationsx: Those of AlbumentationsX; None if they are the same. Its ElasticTransform
            moves a grid of 7 x 7 points, which is another transform, and does not count.
        side: Height and width of the result: one number for a square.
        bound: The largest ratio of gpupipe to the best library.
        then: gpupipe's steps after it. A crop to `side` must follow a step that may make images of
            different sizes; where they all have that size already, the crop does nothing.
        channels: Of the images, and of the result.
        views: How many images the step makes of one.
    """

    step: dict[str, Any]
    torchvision: Sequence[Call] = ()
    albumentations: Sequence[Call | list[Call]] = ()
    albumentationsx: Sequence[Call | list[Call]] | None = None
    side: int | tuple[int, int] = SIDE
    bound: float = 1.0
    then: Sequence[dict[str, Any]] = ()
    channels: tuple[int, int] = (3, 3)
    views: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """[height, width] of the result."""
        return self.side if isinstance(self.side, tuple) else (self.side, self.side)

    def calls(self, library: str) -> Sequence[Sequence[Call]]:
        """Return the candidates of a library: chains of transforms, of which the fastest counts."""
        if library == "torchvision":
            return [self.torchvision] if self.torchvision else []
        is_own = library == "albumentationsx" and self.albumentationsx is not None
        found = (self.albumentationsx if is_own else self.albumentations) or ()
        return [call if isinstance(call, list) else [call] for call in found]
