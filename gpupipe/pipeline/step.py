"""The contract of a step.

A step is a frozen pydantic model. Its fields are the parameters in the YAML, with torchvision v2's
names and defaults. The engines call its members in this order:

    resolve(spec)      once: returns the step with short forms expanded for its input
    infer_spec(spec)   once: returns shape, dtype and layout of the output, or refuses the input
    num_uniforms       the number of uniform draws that one sample needs
    sample(u)          each batch: turns draws into parameters (NumPy, a whole batch at a time); the
                       only place where randomness enters
    lower(image, p)    each batch: calls primitives (see primitives.py), from which every back end
                       builds its graph or kernels; p[name] is an array (B, ...)
    torch(image, p)    each sample: the reference, on a tensor (C, H, W); p[name] is an array (...),
                       the part of one sample

Steps also work on arrays that are no images. `torch` gets such an array with its axes in the order
(others..., C, space...); see dataset/spec.py.

Write a formula over `p` and the image size once, in NumPy over the last axes: it then serves one
sample and a whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pydantic
from numpy.typing import NDArray

from gpupipe.dataset.spec import FLOATS as FLOATS  # noqa: PLC0414  # plugins import it from here
from gpupipe.dataset.spec import Kind
from gpupipe.dataset.spec import Spec as Spec  # noqa: PLC0414  # plugins import it from here
from gpupipe.errors import NoLoweringError as NoLoweringError  # noqa: PLC0414  # as above
from gpupipe.errors import SampleIncompatibleError as SampleIncompatibleError  # noqa: PLC0414
from gpupipe.errors import StepIncompatibleError as StepIncompatibleError  # noqa: PLC0414
from gpupipe.pipeline.primitives import Primitives as Primitives  # noqa: PLC0414  # steps, too
from gpupipe.runtime.failures import is_foreign
from gpupipe.runtime.user_functions import UserCall
from gpupipe.schema.field_types import mask_fill

if TYPE_CHECKING:
    from torch import Tensor

Uniforms = NDArray[np.float64]
"""Uniform draws in [0, 1): (N, num_uniforms), one row for each sample or batch."""
Sampled = dict[str, NDArray[Any]]
"""The arrays that `sample` returns, by name, each with N as its first axis."""
Params = Mapping[str, Any]
"""The arrays that `sample` returned, by name: of all samples, or one sample's part of each."""


_ON_MASKS = {"interpolation": "nearest", "antialias": False}


class BaseStep(pydantic.BaseModel):
    """The base of steps on samples and of steps on batches. Fields are the step's parameters.

    Attributes:
        num_uniforms: The number of uniform draws that one sample or batch needs.
        outside_fingerprint: Parameters that do not change what the step computes. They are left out
            of the pipeline's fingerprint.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    num_uniforms: ClassVar[int] = 0

    outside_fingerprint: ClassVar[frozenset[str]] = frozenset()

    def sample(self, u: Uniforms) -> Sampled:
        """Turn uniform draws into the parameters of each sample, or of each batch.

        Must be a pure function of `u` and the step's fields, so that every engine, rank and resumed
        run sees the same augmentation.

        Args:
            u: float64 (N, num_uniforms) in [0, 1), one row per sample; one per batch for a step of
                the batch stage.

        Returns:
            Arrays by name, each with N as its first axis. `lower` gets them whole; `torch` gets the
            entry of one sample, or of one batch.
        """
        return {}

    def list_undecided(self, count: int) -> Sampled:
        """Return the parameters that `Step.decide` replaces, with their placeholders."""
        return {}


class Step(BaseStep):
    """The base class of all steps.

    Subclasses declare their parameters as pydantic fields and override `sample`, `infer_spec`,
    `lower` and `torch`. `torch` is the reference, which `lower` must match (see `interpolates`). A
    step without `lower` runs only on engines that run torch. A step without `torch` runs only on
    the DALI engine.

    Threads: an engine calls `torch` of one step object on several threads at once, each with an
    image of its own. So `torch` must be a pure function: it stores nothing on the step or in its
    module, changes no input in place, and draws nothing (`p` has all draws). The same holds for
    `sample` and `lower`, which run at once for the batches in flight.

    Another package registers a step in the entry point group `gpupipe.steps`. The entry point's
    name is the step's name in YAML.

    Attributes:
        num_uniforms: The number of uniform draws that one sample needs.
        added_later: Parameters that the step gained after its first release. While they have their
            defaults they are left out of the pipeline's fingerprint, so that older states load.
        interpolates: Whether the step computes values between pixels. If so, engines agree only on
            average; otherwise they agree in every pixel, within one level.
        speed_advice: A faster alternative, which `gpupipe profile` prints if this step takes most
            of the time.
        can_run_on_batches: Whether `torch` draws nothing and also takes a whole batch (B, C, H, W).
            Such steps may run on the client of a server, after delivery.
        runs_unknown_code: Whether `lower` runs code that gpupipe does not know. The DALI engine
            then checks its output against the spec, as it does for steps of other packages.
        calls_user_code: Whether the step calls functions of the user's. load() then runs the steps
            on the first sample, so that their mistakes are found there.
        num_views: The number of images that the step makes from one. A step that makes several
            must be the first in a view with that `count`; each field of the view runs the copy that
            `select_view` returns. Anywhere else its `infer_spec` refuses the input.
        needs: The kinds of annotations without which the step makes no sense: "boxes", "points". A
            pipeline for images that have none is refused.
        decided: The parameters that depend on annotations, which `decide` returns: for each a
            placeholder, the value of one sample, with which engines try the step.
        empties_boxes: Whether the step makes boxes [0, 0, 0, 0], which a later step must drop.
        drops_empty_boxes: Whether the step drops boxes without area.
        can_be_nested: Whether containers may hold the step. Not if it changes something that all
            samples of a batch share.
        example: Parameters with which `gpupipe gallery` shows the step, on a photograph of about
            250 pixels. Without an example, the gallery leaves out a step that has parameters
            without a default.

    Examples:
        A step that mirrors images with probability `p`:

            class RandomMirror(Step):
                p: Probability = 0.5
                num_uniforms = 1

                def sample(self, u):
                    return {"flip": (u[:, 0] < self.p).astype(np.int32)}

                def infer_spec(self, input_spec):
                    return check_axis("W", input_spec)

                def lower(self, image, p):
                    image.flip(horizontal=p["flip"])

                def torch(self, image, p):
                    return image.flip(-1) if p["flip"] else image
    """

    _space: int = pydantic.PrivateAttr(2)
    """The number of spatial axes, which are the last axes of a tensor."""
    _kind: Kind = pydantic.PrivateAttr("image")
    """The kind of the field that the step works on."""

    added_later: ClassVar[frozenset[str]] = frozenset()
    interpolates: ClassVar[bool] = False
    speed_advice: ClassVar[str] = ""
    can_run_on_batches: ClassVar[bool] = False
    runs_unknown_code: ClassVar[bool] = False
    calls_user_code: ClassVar[bool] = False
    num_views: ClassVar[int] = 1
    needs: ClassVar[frozenset[str]] = frozenset()
    decided: ClassVar[Mapping[str, Any]] = {}
    empties_boxes: ClassVar[bool] = False
    drops_empty_boxes: ClassVar[bool] = False
    can_be_nested: ClassVar[bool] = True
    example: ClassVar[Mapping[str, Any]] = {}

    @property
    def has_torch(self) -> bool:
        """Whether the step has a torch lowering. Without one it runs on the DALI engine alone."""
        return type(self).torch is not Step.torch

    def resolve(self, input_spec: Spec) -> Self:
        """Return a copy of this step with its short forms expanded for its input.

        For example, `size: 224` becomes (224, 224) for images and (224, 224, 224) for volumes.

        Args:
            input_spec: Shape, dtype and layout of the input.

        Raises:
            StepIncompatibleError: If a parameter does not suit the input's axes.
        """
        resolved = self.model_copy()
        if not input_spec.encoded:  # an image file has no axes yet
            resolved._space = len(input_spec.space)
        resolved._kind = input_spec.kind
        return resolved

    def infer_spec(self, input_spec: Spec) -> Spec:
        """Return shape, dtype and layout of the output.

        The engines check the real output against this spec. By default, return `input_spec`.

        Args:
            input_spec: Shape, dtype and layout of the input. Sizes that differ between samples
                are None.

        Raises:
            StepIncompatibleError: If the step cannot process such an input. The message says why,
                and what to write instead.
        """
        return input_spec

    def explain_doubt(self, input_spec: Spec) -> str:
        """Return why the step's result is hardly what the user means, and what to write; or ""."""
        return ""

    @classmethod
    def guess_spec(cls, input_spec: Spec) -> Spec | None:
        """Guess the output of a step with invalid parameters, so that later steps are checked.

        By default the guess is the input with an unknown size. Steps of other packages have no
        guess unless they override this method.

        Args:
            input_spec: Shape, dtype and layout of the input.

        Returns:
            A spec that is true for any parameters, or None to leave the later steps unchecked.
        """
        if is_foreign(cls):
            return None
        return of_any_size(input_spec)

    def adapt_to_mask(self) -> Self:
        """Return a copy of the step for masks, whose pixel values are class numbers.

        By default this sets the parameters `interpolation` to nearest, `antialias` to false, and
        `fill` to class 0 or to the class in `fill: {mask: ...}`, if the step has them.
        """
        on_masks = _ON_MASKS | {"fill": mask_fill(getattr(self, "fill", None))}
        fields = type(self).model_fields
        changed = {name: value for name, value in on_masks.items() if name in fields}
        return self.model_copy(update=changed) if changed else self

    def select_view(self, number: int) -> Self:
        """Return a copy of the step that makes only image `number`, 0 to num_views - 1."""
        raise NotImplementedError

    def list_calls(self) -> list[UserCall]:
        """Return the functions of the user's that the step calls; see `calls_user_code`."""
        return []

    def release(self) -> None:
        """End the processes that the step started, if any. A later `torch` starts them again."""

    def explain_refusal(self) -> str:
        """Return why boxes and points cannot follow this step; "" if they can.

        A pipeline with the step, for images with boxes or points, is refused with this message.
        """
        return ""

    def list_undecided(self, count: int) -> Sampled:
        return {name: np.repeat(np.asarray(v)[None], count, 0) for name, v in self.decided.items()}

    def decide(self, image: Primitives, p: Params) -> Sampled:
        """Compute the parameters that depend on annotations, such as a window around a box.

        Called for a whole batch before any pixel is read, and before `lower`. `lower` and `torch`
        then find the results in `p`, on every engine. Random numbers must come from `p`: draw a
        seed in `sample`, and hash it with `draws.uniform`.

        Args:
            image: The samples: `image.size`, `image.annotations` (not None) and `image.present`.
            p: The arrays that `sample` returned, (B, ...), by name.

        Returns:
            An array (B, ...) for each name in `decided`. Only the samples in `image.present` count.
        """
        return {}

    def decide_and_lower(self, image: Primitives, p: Params) -> None:
        """Call `decide` if the back end has annotations, keep its results in `p`, and `lower`."""
        if self.decided and image.annotations is not None:
            for name, values in self.decide(image, p).items():
                p[name][image.present] = values[image.present]
        self.lower(image, p)

    def lower(self, image: Primitives, p: Params) -> None:
        """Process a batch by calling primitives of `image`.

        Steps that change annotations alone do so here, if `image.annotations` is not None.

        Args:
            image: The batch, changed in place. The sequence of calls must not depend on values:
                see Primitives.
            p: The arrays that `sample` returned, (B, ...), by name.

        Raises:
            SampleIncompatibleError: If a sample cannot be processed.
            NoLoweringError: If the step cannot be built from primitives.
        """
        raise NoLoweringError(f"{type(self).__name__} has no lowering onto primitives")

    def torch(self, image: Tensor, p: Params) -> Tensor:
        """Process one image in torch, usually with torchvision.transforms.v2.functional.

        Several threads call this method of one object at once: see the class.

        Args:
            image: Tensor (C, H, W), or (others..., C, space...) for an array that is no image.
            p: One sample's entry of each array that `sample` returned.

        Returns:
            A tensor with the axes in the same order, and the shape and dtype of `infer_spec`.

        Raises:
            SampleIncompatibleError: If the sample cannot be processed.
            NoLoweringError: If the step does not run in torch.
        """
        raise NoLoweringError(f"{type(self).__name__} has no torch lowering")


def of_any_size(input_spec: Spec) -> Spec:
    """Return `input_spec` with an unknown size."""
    return input_spec.with_size([None] * len(input_spec.space))
