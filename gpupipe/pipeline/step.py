"""The contract of a step, and how steps are found by name.

A step is a frozen pydantic model. Its fields are the parameters in the YAML, with torchvision v2's
names and defaults. It has these members:

    lanes            the number of uniform draws that one sample needs
    sample(u)        turns draws into parameters (NumPy, a whole batch at a time); the only place
                     where randomness enters
    fitted(given)    returns the step with short forms written out for its input
    spec(given)      returns shape, dtype and layout of the output, or refuses the input
    dali(image, p)   processes a batch of images in DALI; p[name] is an array (B, ...)
    torch(image, p)  does the same to one image, a tensor (C, H, W); p[name] is an array (...),
                     the part of one sample

Steps also work on arrays that are no images. `torch` gets such an array with its axes in the order
(others..., C, space...); see dataset/spec.py.

Write a formula over `p` and the image size once, in NumPy over the last axes: it then serves one
sample and a whole batch.
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

from gpupipe.dataset.spec import FLOATS as FLOATS  # noqa: PLC0414  # plugins import it from here
from gpupipe.dataset.spec import Spec as Spec  # noqa: PLC0414  # plugins import it from here
from gpupipe.errors import did_you_mean
from gpupipe.runtime import plugins

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

Params = Mapping[str, Any]
"""The arrays that `Step.sample` returns, by name."""


class StepIncompatible(Exception):
    """A step cannot process its input; the message says why and what to write instead."""


class SampleIncompatible(RuntimeError):
    """A step cannot process this one sample; the message says why.

    If `torch` or `dali` raises it, the run loses that sample, as if it could not be decoded. Any
    other exception in a step's code counts as a bug of the step and ends the run.
    """


class DaliImage(Protocol):
    """The images of a batch in DALI, as a step sees them.

    The methods change the image in place. The engine's implementation defers them, so that it can
    fuse neighbouring steps into one DALI operator.

    Points, sizes and windows are float64 arrays of shape (B, 2), or (2,) if all samples share them.
    They are [height, width] or [top, left] in pixels unless a name says otherwise. For an array
    that is no image, they hold one number per spatial axis, in the order of its layout.

    A step must call the same methods for every batch: the first calls build the DALI graph, and
    the same calls then compute the values that each batch feeds to it.

    Attributes:
        device: Where the graph runs.
        spec: Shape, dtype and layout of the images at this point.

    """

    device: Literal["cpu", "gpu"]
    spec: Spec

    @property
    def size(self) -> Any:
        """The current size as [height, width] in pixels, float64 (B, 2) or (2,)."""

    @property
    def width_height(self) -> Any:
        """The current size as [width, height] in pixels, for formulas in x and y."""

    def apply(
        self, op: str, make: Callable[..., Any], *values: NDArray[Any], size: Any = None
    ) -> None:
        """Insert any DALI operator.

        Args:
            op: The operator's name, for profiles and reports.
            make: Called with the pixels, a DataNode of layout HWC, and with one DataNode per entry
                of `values`. Returns the DataNode that replaces the pixels.
            *values: Arrays (B, ...) with the operator's arguments per sample; fed as float32 if
                they are floats, else as int32.
            size: The new [height, width] in pixels, if the operator changes it.

        """

    def decode(self, mode: str, apply_exif_orientation: bool, dtype: str = "uint8") -> None:
        """Decode the bytes of an image file.

        Args:
            mode: "rgb" or "gray".
            apply_exif_orientation: Rotate and mirror the image as its EXIF tag says.
            dtype: "uint8" or "uint16".

        """

    def crop(self, anchor: Any, shape: Any, fill: tuple[float, ...] | None = None) -> None:
        """Cut a window out of the image.

        Args:
            anchor: [top, left] of the window in pixels; may be negative.
            shape: [height, width] of the window in pixels.
            fill: The value outside the image: one number, or one per channel. None if the window
                always lies inside.

        Raises:
            SampleIncompatible: If `fill` is None and the window reaches outside the image.

        """

    def pad(self, before: Any, after: Any, mode: str) -> None:
        """Add a border that repeats pixels of the image.

        Args:
            before: [top, left] pixels to add.
            after: [bottom, right] pixels to add.
            mode: "edge", "reflect" or "symmetric", as in torchvision's Pad.

        """

    def resize(self, shape: Any, interpolation: str, antialias: bool) -> None:
        """Resample to `shape`.

        Args:
            shape: [height, width] in pixels.
            interpolation: "nearest", "bilinear" or "bicubic".
            antialias: Low-pass before shrinking.

        """

    def flip(self, horizontal: Any = None, vertical: Any = None) -> None:
        """Mirror those samples whose flag is 1.

        Args:
            horizontal: int32 (B,), 1 to swap left and right; None for no sample.
            vertical: int32 (B,), 1 to swap top and bottom; None for no sample.

        """

    def warp(
        self,
        linear: Any,
        source: Any,
        output: Any,
        interpolation: str,
        fill: tuple[float, ...],
        shape: Any = None,
    ) -> None:
        """Resample through an affine map from output to source coordinates.

        The output pixel at x takes its value from linear @ (x - output) + source. Points are [x, y]
        in pixels, with pixel corners at integers.

        Args:
            linear: float64 (B, 2, 2) or (2, 2), the inverse of the forward map.
            source: The fixed point in the source image, such as its centre.
            output: Where `source` lies in the output.
            interpolation: "nearest" or "bilinear".
            fill: The value outside the image: one number, or one per channel.
            shape: [height, width] of the output in pixels; the image's own by default.

        """

    def to_dtype(self, dtype: str, scale: bool) -> None:
        """Convert to another dtype.

        Args:
            dtype: Its NumPy name, such as "float32".
            scale: Map the full range of an integer dtype to 0..1 and back.

        """

    def normalize(self, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        """Compute (x - mean) / std, with one number for all channels or one per channel."""


class Step(pydantic.BaseModel):
    """The base class of all steps.

    Subclasses declare their parameters as pydantic fields and override `sample`, `spec`, `dali` and
    `torch`. `torch` is the reference, which `dali` must match (see `interpolates`). A step that
    implements only one of the two runs only on that kind of engine.

    A package offers a step under the entry point group `gpupipe.steps`; the entry point's name is
    the name in YAML.

    Attributes:
        lanes: The number of uniform draws that one sample needs.
        later: Parameters that the step gained after its first release. While they have their
            defaults they are left out of the pipeline's fingerprint, so that older states load.
        interpolates: Whether the step computes values between pixels. Engines then agree on
            average, and not within one level in every pixel.

    Example:
        A step that inverts uint8 images with probability `p`::

            class RandomInvert(Step):
                p: Probability = 0.5
                lanes = 1

                def sample(self, u):
                    return {"invert": (u[:, 0] < self.p).astype(np.int32)}

                def spec(self, given):
                    return decoded(given)

                def dali(self, image, p):
                    from nvidia.dali import fn

                    def blend(pixels, invert):
                        return fn.cast_like(pixels + invert * (255 - 2 * pixels), pixels)

                    image.apply("invert", blend, p["invert"])

                def torch(self, image, p):
                    return 255 - image if p["invert"] else image

    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    lanes: ClassVar[int] = 0
    later: ClassVar[frozenset[str]] = frozenset()
    interpolates: ClassVar[bool] = False

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Turn uniform draws into the parameters of each sample.

        Must be a pure function of `u` and the step's fields, so that every engine, rank and resumed
        run sees the same augmentation.

        Args:
            u: float64 (B, lanes) in [0, 1), one row per sample.

        Returns:
            Arrays by name, each with B as its first axis. `dali` gets them whole; `torch` gets one
            sample's entry of each.

        """
        return {}

    _space: int = pydantic.PrivateAttr(2)
    """The number of spatial axes, which are the last axes of a tensor."""

    def fitted(self, given: Spec) -> Self:
        """Return a copy of this step with its short forms written out for its input.

        For example, `size: 224` becomes (224, 224) for images and (224, 224, 224) for volumes.

        Args:
            given: Shape, dtype and layout of the input.

        Raises:
            StepIncompatible: If a parameter does not suit the input's axes.

        """
        fitted = self.model_copy()
        fitted._space = len(given.space)
        return fitted

    def spec(self, given: Spec) -> Spec:
        """Return shape, dtype and layout of the output.

        The engines check the real output against it. The default is for a step that keeps all
        three.

        Args:
            given: Shape, dtype and layout of the input. Sizes that differ between samples are None.

        Raises:
            StepIncompatible: If the step cannot process such an input. The message says why and
                what to write instead.

        """
        return given

    def dali(self, image: DaliImage, p: Params) -> None:
        """Process a batch in DALI by calling methods of `image`.

        Args:
            image: The batch, changed in place. Its methods build the graph once and then compute
                the values for each batch, so the sequence of calls must not depend on values.
            p: What `sample` returned: arrays (B, ...) by name.

        Raises:
            SampleIncompatible: If a sample cannot be processed.
            NoLowering: If the step does not run on DALI.

        """
        raise NoLowering(f"{type(self).__name__} has no DALI lowering")

    def torch(self, image: Tensor, p: Params) -> Tensor:
        """Process one image in torch, usually with torchvision.transforms.v2.functional.

        Args:
            image: Tensor (C, H, W), or (others..., C, space...) for an array that is no image.
            p: One sample's entry of each array that `sample` returned.

        Returns:
            A tensor with the axes in the same order, and the shape and dtype that `spec` says.

        Raises:
            SampleIncompatible: If the sample cannot be processed.
            NoLowering: If the step does not run in torch.

        """
        raise NoLowering(f"{type(self).__name__} has no torch lowering")


class NoLowering(Exception):
    """A step cannot run on this kind of engine."""


def decoded(given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if it is not decoded yet."""
    if given.encoded:
        raise StepIncompatible(
            "it works on pixels, but what reaches it are encoded bytes: write a 'decode' "
            "step before it"
        )
    return given


def one_a_channel(what: str, numbers: tuple[float, ...], given: Spec) -> Spec:
    """Return `given`; raise StepIncompatible if `numbers` do not match its channels.

    Args:
        what: The parameter's name, for the message.
        numbers: The parameter's value: one number, or one per channel.
        given: The step's input, which must be decoded.

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
    """Return the names of the built-in steps."""
    package = importlib.import_module("gpupipe.steps")
    return {m.name for m in pkgutil.iter_modules(package.__path__)}


def names() -> list[str]:
    """Return the sorted names of all steps: the built-in ones and those of installed plugins."""
    return sorted(builtin() | plugins.names(plugins.STEPS))


def find(name: str) -> type[Step]:
    """Return the class of the step called `name`.

    Built-in steps come first (`gpupipe/steps/NAME.py`), then entry points of the group
    `gpupipe.steps`.

    Raises:
        LookupError: If there is no such step, or a plugin package is broken. The message suggests
            the nearest name, or names the package.

    """
    if (
        name.isidentifier()
        and not name.startswith("_")
        and importlib.util.find_spec(f"gpupipe.steps.{name}")
    ):
        module = importlib.import_module(f"gpupipe.steps.{name}")
        # Every built-in module holds one class, named like the module in CamelCase.
        return getattr(module, _camel(name))  # type: ignore[no-any-return]
    if plugin := plugins.find(plugins.STEPS, name, Step):
        return plugin
    raise LookupError(f"unknown step '{name}'{did_you_mean(name, names())}")


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))
