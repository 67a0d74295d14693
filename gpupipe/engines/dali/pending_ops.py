"""Work that an image has been asked for and that is not an operator yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Emitted:
    """One DALI operator over pixels: its name, its device ("cpu", "gpu", "mixed"), and the steps
    whose work it does.
    """

    op: str
    device: str
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Decoding:
    """How the files of a field are decoded, as the step `decode` has it."""

    mode: str = "rgb"
    exif: bool = False
    dtype: str = "uint8"


@dataclass
class PendingDecode:
    how: Decoding
    step: str


@dataclass
class Window:
    """`room`: the size of what it is cut from."""

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
    """x / divide, then (x - mean) / std, then `dtype`. given: the dtype before."""

    given: str
    dtype: str
    divide: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] = (1.0,)
    steps: list[str] = field(default_factory=list)

    def in_levels(self) -> dict[str, Any]:
        """mean and std for an image that has not been divided yet."""
        return {
            "mean": [m * self.divide for m in self.mean or (0.0,)],
            "std": [s * self.divide for s in self.std],
        }
