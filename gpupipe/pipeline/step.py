"""What a step is, and where steps are found.

A step is a frozen pydantic model whose fields are the parameters in the YAML, under torchvision
v2's names and defaults. It states

    lanes            how many uniform draws a sample takes sample(u)        how draws become
    parameters (NumPy, a whole batch at a time): the one place where chance enters fitted(given)
    the step with its short forms written out for what reaches it spec(given)      how it changes
    shape, dtype and layout, or why it cannot follow what came before dali(image, p)   its work on a
    batch of images in DALI;  p[name] is an array (B, ...) torch(image, p)  the same work on one
    image, a tensor (C, H, W);  p[name] is an array (...), one sample's part of that

What holds of images here holds of arrays: their axes are put in the order (others..., C, space...)
for `torch`; see dataset/spec.py.

Formulas over p and the size of an image are written once, in NumPy over the last axes, for a sample
and a batch alike.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.dataset.spec import FLOATS as FLOATS  # noqa: PLC0414  # what plugins import from here
from gpupipe.dataset.spec import Spec as Spec  # noqa: PLC0414  # the same
from gpupipe.errors import did_you_mean
from gpupipe.runtime import plugins

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

Params = Mapping[str, Any]


class StepIncompatible(Exception):
    """A step cannot follow what came before; the message says why and what to write instead."""


class SampleIncompatible(RuntimeError):
    """A step cannot be done to this one sample; the message says why.

    Raised by `torch` or `dali`, it costs that sample, as one that cannot be decoded. Any other
    exception in a step's code is taken for a mistake in the step, and ends the run.
    """


class DaliImage(Protocol):
    """The images of a batch in DALI, as a step sees them. The engine's own class defers work so
    that it can fuse.

    Points, sizes and windows are float64 arrays (B, 2), or (2,) where they are the same for all
    samples; [height, width] and [top, left] in pixels unless a name says otherwise. Of an array
    they have a number for each axis of space, in the order of its layout. Which methods a step
    calls must not depend on their values: the first calls build a graph, and the same calls then
    find the values for each batch.
    """

    device: Literal["cpu", "gpu"]
    spec: Spec

    @property
    def size(self) -> Any:
        """[height, width] as it is now."""

    @property
    def width_height(self) -> Any:
        """The same as [width, height], for formulas in x and y."""

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        """Anything that DALI can do. `make` gets the pixels as a DataNode, layout HWC, and a
        DataNode for each of `values` (arrays (B, ...), which become float32 or int32), and returns
        the DataNode to go on with. op: its name. size: [height, width] where it changes that.
        """

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        """Decode to "rgb" or "gray", to "uint8" or "uint16"."""

    def crop(self, anchor: Any, shape: Any, fill: tuple[float, ...] | None = None) -> None:
        """Cut a window. Outside the image is `fill`; an error at run time where `fill` is None."""

    def pad(self, before: Any, after: Any, mode: str) -> None:
        """Add [top, left] and [bottom, right] pixels made of the image itself: mode "edge",
        "reflect" or "symmetric".
        """

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        """Resample to `shape`."""

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        """Mirror where the given number, int32 (B,), is 1."""

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: tuple[float, ...],
        shape: Any = None,
    ) -> None:
        """Resample: the output pixel at x lies at linear @ (x - output) + source. Points are [x, y]
        with pixel corners at integers, linear is (2, 2), `shape` [height, width] of the output (the
        image's own by default).
        """

    def to_dtype(self, dtype: str, scale: bool) -> None:
        """Convert; `scale` maps the range of integers to 0 to 1 and back."""

    def normalize(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """(x - mean) / std, one number a channel."""


class Step(pydantic.BaseModel):
    """The base of all steps; see the head of this module."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    lanes: ClassVar[int] = 0
    later: ClassVar[frozenset[str]] = frozenset()
    """Parameters that the step did not have at first. With their defaults they are no part of a
    pipeline's fingerprint, so that states from before them still fit."""
    interpolates: ClassVar[bool] = False
    """Whether pixels are made between those that are there: engines then agree in the mean, and not
    to a level in each pixel.
    """

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Parameters from draws.

        u: float64 (B, lanes) in [0, 1). Returns arrays whose first axis is B, by name.
        """
        return {}

    _space: int = pydantic.PrivateAttr(2)
    """How many axes of space it works on: they are the last ones of a tensor."""

    def fitted(self, given: Spec) -> Self:
        """The same step for what reaches it, its short forms written out.

        Raises StepIncompatible.
        """
        fitted = self.model_copy()
        fitted._space = len(given.space)
        return fitted

    def spec(self, given: Spec) -> Spec:
        """What comes out where `given` goes in. Raises StepIncompatible."""
        return given

    def dali(self, image: DaliImage, p: Params) -> None:
        raise NoLowering(f"{type(self).__name__} has no DALI lowering")

    def torch(self, image: Tensor, p: Params) -> Tensor:
        raise NoLowering(f"{type(self).__name__} has no torch lowering")


class NoLowering(Exception):
    """A step cannot run on this kind of engine."""


def decoded(given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where it is not decoded yet."""
    if given.encoded:
        raise StepIncompatible(
            "it works on pixels, but what reaches it are encoded bytes: write a 'decode' "
            "step before it"
        )
    return given


def one_a_channel(what: str, numbers: tuple[float, ...], given: Spec) -> Spec:
    """`given` itself; raises StepIncompatible where it is not decoded, or `numbers` are neither one
    nor one for each of its channels.
    """
    channels = decoded(given).channels if "C" in given.layout else 1
    if channels is not None and len(numbers) not in (1, channels):
        each = "" if channels == 1 else f", or {channels}"
        raise StepIncompatible(
            f"{what} has {len(numbers)} numbers, but the image has {channels} "
            f"channel{'s' * (channels != 1)}: write one{each}"
        )
    return given


def builtin() -> set[str]:
    """The names of the built-in steps."""
    package = importlib.import_module("gpupipe.steps")
    return {m.name for m in pkgutil.iter_modules(package.__path__)}


def names() -> list[str]:
    """The names of all steps that can be used: the built-in ones and those of installed plugins."""
    return sorted(builtin() | plugins.names(plugins.STEPS))


def find(name: str) -> type[Step]:
    """The class of the step called `name`: `gpupipe/steps/NAME.py`, else the entry point NAME in
    the group `gpupipe.steps`.

    Raises LookupError, which suggests the nearest name, or names the package that is broken.
    """
    if (
        name.isidentifier()
        and not name.startswith("_")
        and importlib.util.find_spec(f"gpupipe.steps.{name}")
    ):
        module = importlib.import_module(f"gpupipe.steps.{name}")
        # every built-in file holds one class of its name
        return getattr(module, _camel(name))  # type: ignore[no-any-return]
    if found := plugins.find(plugins.STEPS, name, Step):
        return found
    raise LookupError(f"unknown step '{name}'{did_you_mean(name, names())}")


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
