"""The base classes of the steps of the batch stage, and what a step must define.

A step is a frozen pydantic model, with the names, defaults and meaning of torchvision v2. Its
members are called in this order:

    check(fields)             once: refuses fields that the step cannot process
    num_uniforms              the number of uniform draws that one batch needs
    sample(u)                 each batch: turns draws into parameters; the only place where
                              randomness enters
    torch(images, labels, p)  each batch: processes the batch on its device

The draws are hashes of (seed, epoch, ids of the batch, step). So a sample's pixels depend on the
samples in its batch, and thus on the batch size and the number of ranks. This is the only exception
to the rule that the same seed, epoch and sample have the same draws everywhere. A resumed
run with the same batch size and number of ranks delivers the same batches, bit for bit.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BeforeValidator, Field

from gpupipe.dataset.labels import MAX_CLASSES
from gpupipe.dataset.spec import Spec
from gpupipe.errors import did_you_mean
from gpupipe.pipeline.container import BaseContainer, BaseNestedStep, check_nested
from gpupipe.pipeline.step import BaseStep, Params, StepIncompatibleError
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime.registry import BATCH_STEP_GROUP, Registry
from gpupipe.schema.field_types import WHOLE

if TYPE_CHECKING:
    from torch import Tensor

Images = Mapping[str, "Tensor"]
"""Fields of a batch by name: images are (B, C, H, W). For other arrays, see `BatchStep.torch`."""
MixedBatch = tuple[dict[str, "Tensor"], "Tensor"]
"""The fields and the soft labels that a step returns."""
NumClasses = Annotated[int, Field(ge=1, le=MAX_CLASSES), WHOLE]


class BatchStep(BaseStep):
    """The base of all steps of the batch stage.

    Subclasses declare their parameters as pydantic fields and override `sample`, `check` and
    `torch`. A package offers a step under the entry point group `gpupipe.batch_steps`; the entry
    point's name is the name in YAML.

    The draws of a step are hashes of (seed, epoch, ids of the batch, step), so they depend on all
    samples of the batch.

    Attributes:
        num_classes: The number of classes, the width of the soft labels. By default the number of
            classes of the data. All steps of a config that set it must set the same number.
        num_uniforms: The number of uniform draws that one batch needs.
        mixes_samples: Whether the step mixes the samples of a batch with each other. For such a
            step, `gpupipe check` reports how many samples are mixed with themselves.
        uses_labels: Whether the step takes soft labels. If no step of a stage does, the labels of
            its batches stay class numbers, and the data need not have any.
        is_thread_safe: Whether `torch` may run on several threads at once, on one batch each. If
            all steps of a stage are, an engine may run the stage on its own threads. By default
            `torch` runs on the consumer's thread, on one batch after the other.
    """

    num_classes: NumClasses | None = None

    mixes_samples: ClassVar[bool] = False
    uses_labels: ClassVar[bool] = True
    is_thread_safe: ClassVar[bool] = False

    def list_num_classes(self) -> list[int]:
        """Return each `num_classes` that is set on the step, or on a step inside it."""
        return [] if self.num_classes is None else [self.num_classes]

    def check(self, fields: Mapping[str, Spec]) -> None:
        """Raise an error for fields that the step cannot process. By default, accept all.

        Args:
            fields: Maps the name of each field that the step works on to the spec of one delivered
                sample.

        Raises:
            StepIncompatibleError: If the step cannot process the fields. The message says why and
                what to write instead.
        """

    def torch(self, images: Images, labels: "Tensor", p: Params) -> MixedBatch:
        """Process one batch on its device. Must not change its arguments in place.

        Args:
            images: The fields that the step works on, by name. Images are (B, C, H, W). Other
                arrays are (B, others..., C, space...): `space` stands for the spatial axes, and
                `others` for the axes that are neither spatial nor C.
            labels: Soft labels, float32 (B, classes): the share of each class, one-hot before the
                first step.
            p: This batch's entry of each array that `sample` returned, "shift" and "memory". A step
                mixes sample i with sample i - shift, so that neighbouring views of one sample do
                not mix; if shift is 0, it mixes nothing. See `find_shift` in
                gpupipe.batch_stage.stage. `memory.allocate_like(images[name])` returns memory of
                earlier batches for a result, which takes less time than new memory.

        Returns:
            The processed fields and labels, with the same shapes and dtypes.

        Raises:
            StepIncompatibleError: If the step cannot process this batch. The message says why and
                what to write instead.
        """
        raise NotImplementedError


class NestedBatchStep(BaseNestedStep):
    """A step inside a container, such as random_choice; see BaseNestedStep."""

    step: BatchStep


class BatchContainer(BaseContainer, BatchStep):
    """The base of steps that hold other steps. Subclasses define `own_uniforms`, `draw`, `torch`.

    The container's own draws come first, then those of its steps, in order.

    Attributes:
        transforms: The steps.
    """

    transforms: Annotated[tuple[NestedBatchStep, ...], BeforeValidator(check_nested)]

    @property
    def mixes_samples(self) -> bool:  # type: ignore[override]
        """Whether one of the steps mixes the samples of a batch with each other."""
        return any(nested.step.mixes_samples for nested in self.transforms)

    @property
    def uses_labels(self) -> bool:  # type: ignore[override]
        """Whether one of the steps takes soft labels."""
        return any(nested.step.uses_labels for nested in self.transforms)

    @property
    def is_thread_safe(self) -> bool:  # type: ignore[override]
        """Whether all of the steps may run on several threads at once."""
        return all(nested.step.is_thread_safe for nested in self.transforms)

    def list_num_classes(self) -> list[int]:
        nested = [n for inner in self.transforms for n in inner.step.list_num_classes()]
        return super().list_num_classes() + nested

    def check(self, fields: Mapping[str, Spec]) -> None:
        for nested in self.transforms:
            try:
                nested.step.check(fields)
            except StepIncompatibleError as e:
                raise StepIncompatibleError(
                    f"{nested.name}: {e}", e.where or nested.where
                ) from None


def _advise(name: str) -> str:
    if name in STEPS.names():
        return f"'{name}' works on single samples: write it under 'pipeline:'"
    nearest = did_you_mean(name, BATCH_STEPS.names())
    return f"unknown step '{name}' of the batch stage{nearest}"


BATCH_STEPS = Registry(
    "batch step", "gpupipe.batch_stage.steps", BatchStep, BATCH_STEP_GROUP, _advise
)
