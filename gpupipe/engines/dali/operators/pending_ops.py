"""Deferred operations of an image that are not DALI operators yet; see image.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gpupipe.decoders.chain import DecodeOptions


@dataclass(frozen=True)
class Emitted:
    """One DALI operator over pixels.

    Attributes:
        op: The operator's name, such as "resize".
        device: "cpu", "gpu" or "mixed".
        steps: The keys of the steps that it implements.
    """

    op: str
    device: str
    steps: tuple[str, ...]


@dataclass
class PendingDecode:
    how: DecodeOptions
    step: str


@dataclass
class Window:
    """A crop.

    Attributes:
        anchor: [top, left] of the window, in pixels.
        shape: [height, width] of the window.
        fill: The value of pixels outside the image, or None if there are none.
        step: The key of the step.
        room: The size of the image from which the window is cut.
    """

    anchor: Any
    shape: Any
    fill: tuple[float, ...] | None
    step: str
    room: Any

    @property
    def bounds(self) -> tuple[Any, Any]:
        return self.anchor, self.shape


@dataclass
class PendingResize:
    before: Any
    shape: Any
    interpolation: str
    antialias: bool
    step: str
    region: Window | None = None

    @property
    def steps(self) -> list[str]:
        return [self.step] + ([self.region.step] if self.region else [])


@dataclass
class Flips:
    horizontal: Any = None
    vertical: Any = None
    steps: list[str] = field(default_factory=list)


@dataclass
class Floats:
    """Arithmetic on pixels: x / divide, then (x - mean) / std, then a cast to `dtype`.

    Attributes:
        given: The dtype of x.
        dtype: The dtype of the result.
        divide: 255 to scale uint8 to 0..1, else 1.
        mean: One number, or one per channel. None if there is no normalize yet.
        std: One number, or one per channel.
        steps: The keys of the steps.
    """

    given: str
    dtype: str
    divide: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] = (1.0,)
    steps: list[str] = field(default_factory=list)

    def in_levels(self) -> dict[str, Any]:
        """Return `mean` and `std` in units of x, so that no division by `divide` is needed."""
        return {
            "mean": [m * self.divide for m in self.mean or (0.0,)],
            "std": [s * self.divide for s in self.std],
        }
