"""The contract of a step, and how steps are found by name.

A step is a frozen pydantic model. Its fields are the parameters in the YAML, with torchvision v2's
names and defaults. It has these members:

    lanes            the number of uniform draws that one sample needs
    sample(u)        turns draws into parameters (NumPy, a whole batch at a time); the only place
                     where randomness enters
    fitted(given)    returns the step with short forms written out for its input
    spec(given)      returns shape, dtype and layout of the output, or refuses the input
    lower(image, p)  processes a batch by calling primitives (see primitives.py), from which every
                     back end builds its graph or kernels; p[name] is an array (B, ...)
    torch(image, p)  the reference: does the same to one image, a tensor (C, H, W); p[name] is an
                     array (...), the part of one sample

Steps also work on arrays that are no images. `torch` gets such an array with its axes in the order
(others..., C, space...); see dataset/spec.py.

Write a formula over `p` and the image size once, in NumPy over the last axes: it then serves one
sample and a whole batch.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.dataset.spec import FLOATS as FLOATS  # noqa: PLC0414  # plugins import it from here
from gpupipe.dataset.spec import Spec as Spec  # noqa: PLC0414  # plugins import it from here
from gpupipe.errors import did_you_mean
from gpupipe.pipeline.primitives import Primitives
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

    If `torch` or `lower` raises it, the run loses that sample, as if it could not be decoded. Any
    other exception in a step's code counts as a bug of the step and ends the run.
    """


class Step(pydantic.BaseModel):
    """The base class of all steps.

    Subclasses declare their parameters as pydantic fields and override `sample`, `spec`, `lower`
    and `torch`. `torch` is the reference, which `lower` must match (see `interpolates`). A step
    without `lower` runs only on engines that run torch, and one without `torch` only on the others.

    A package offers a step under the entry point group `gpupipe.steps`; the entry point's name is
    the name in YAML.

    Attributes:
        lanes: The number of uniform draws that one sample needs.
        later: Parameters that the step gained after its first release. While they have their
            defaults they are left out of the pipeline's fingerprint, so that older states load.
        interpolates: Whether the step computes values between pixels. Engines then agree on
            average, and not within one level in every pixel.
        speed_advice: What costs less time than this step, as `gpupipe profile` advises if most of
            the time goes to it.

    Example:
        A step that mirrors images with probability `p`::

            class RandomMirror(Step):
                p: Probability = 0.5
                lanes = 1

                def sample(self, u):
                    return {"flip": (u[:, 0] < self.p).astype(np.int32)}

                def spec(self, given):
                    return along("W", given)

                def lower(self, image, p):
                    image.flip(horizontal=p["flip"])

                def torch(self, image, p):
                    return image.flip(-1) if p["flip"] else image

    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    _space: int = pydantic.PrivateAttr(2)
    """The number of spatial axes, which are the last axes of a tensor."""

    lanes: ClassVar[int] = 0
    later: ClassVar[frozenset[str]] = frozenset()
    interpolates: ClassVar[bool] = False
    speed_advice: ClassVar[str] = ""

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Turn uniform draws into the parameters of each sample.

        Must be a pure function of `u` and the step's fields, so that every engine, rank and resumed
        run sees the same augmentation.

        Args:
            u: float64 (B, lanes) in [0, 1), one row per sample.

        Returns:
            Arrays by name, each with B as its first axis. `lower` gets them whole; `torch` gets one
            sample's entry of each.

        """
        return {}

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

    def lower(self, image: Primitives, p: Params) -> None:
        """Process a batch by calling primitives of `image`.

        Args:
            image: The batch, changed in place. The sequence of calls must not depend on values:
                see Primitives.
            p: What `sample` returned: arrays (B, ...) by name.

        Raises:
            SampleIncompatible: If a sample cannot be processed.
            NoLowering: If the step cannot be built from primitives.

        """
        raise NoLowering(f"{type(self).__name__} has no lowering onto primitives")

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
