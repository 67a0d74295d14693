"""The base classes of the steps of the batch stage, and what a step must define.

A step is a frozen pydantic model, with the names, defaults and meaning of torchvision v2. Its
members are called in this order:

    check(fields)             once: refuses fields that the step cannot process
    num_uniforms              the number of uniform draws that one batch needs
    sample(u)                 each batch: turns draws into parameters; the only place where
                              randomness enters
    prepare(sizes, ..., p)    each batch: returns what to do to it, maybe before it is there
    torch(images, labels, p)  each batch: processes the batch on its device; by default, does what
                              `prepare` returns

A step defines `prepare` or `torch`.

The draws are hashes of (seed, epoch, ids of the batch, step). So a sample's pixels depend on the
samples in its batch, and thus on the batch size and the number of ranks. This is the only exception
to the rule that the same seed, epoch and sample have the same draws everywhere. A resumed
run with the same batch size and number of ranks delivers the same batches, bit for bit.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, NamedTuple

from pydantic import BeforeValidator, Field

from gpupipe.dataset.labels import MAX_CLASSES
from gpupipe.dataset.spec import Spec
from gpupipe.errors import did_you_mean
from gpupipe.pipeline.container import BaseContainer, BaseNestedStep, check_nested
from gpupipe.pipeline.step import BaseStep, Params, StepIncompatibleError
from gpupipe.pipeline.step_registry import STEPS
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.runtime.registry import BATCH_STEP_GROUP, Registry
from gpupipe.schema.field_types import WHOLE

if TYPE_CHECKING:
    from torch import Tensor

Images = Mapping[str, "Tensor"]
"""Fields of a batch by name: images are (B, C, H, W). For other arrays, see `BatchStep.torch`."""
MixedBatch = tuple[dict[str, "Tensor"], "Tensor"]
"""The fields and the soft labels that a step returns."""
Sizes = Mapping[str, tuple[int, ...]]
"""[height, width] of the images of each field, or the last two axes of other arrays."""
NumClasses = Annotated[int, Field(ge=1, le=MAX_CLASSES), WHOLE]


class MixFunctions(NamedTuple):
    """The functions by which a step changes one batch.

    Attributes:
        images: Returns the new values of a field (B, ...), in memory that the second argument
            allocates, or in new memory; None leaves all fields alone.
        labels: Returns the new soft labels. It computes each class of each sample in the same way,
            from the shares of this class in the sample itself and in the one that the step mixes it
            with: `shift` before it. None leaves them alone.
    """

    images: "Callable[[Tensor, BatchMemory | None], Tensor] | None" = None
    labels: "Callable[[Tensor], Tensor] | None" = None


class BatchStep(BaseStep):
    """The base of all steps of the batch stage.

    Subclasses declare their parameters as pydantic fields and override `sample`, `check`, and
    `prepare` or `torch`. A package offers a step under the entry point group
    `gpupipe.batch_steps`; the entry point's name is the name in YAML.

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
        sizes = {name: tuple(image.shape[-2:]) for name, image in images.items()}
        # Labels are class numbers (B,) if no step takes soft labels.
        num_classes = labels.shape[1] if labels.ndim > 1 else 0
        mixing = self.prepare(sizes, num_classes, p)
        # The labels first, before the images take the caches.
        soft = labels if mixing.labels is None else mixing.labels(labels)
        if mixing.images is None:
            return dict(images), soft
        memory = p.get("memory")
        return {name: mixing.images(image, memory) for name, image in images.items()}, soft

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        """Return what the step does to a batch that is not there yet.

        A step that treats fields and labels apart defines this method in place of `torch`. Then
        several batches may be prepared at once, which takes less time.

        Args:
            sizes: The sizes of the fields that the step works on.
            num_classes: The width of the soft labels; 0 if no step takes any.
            p: The parameters of `torch`, without "memory".

        Raises:
            StepIncompatibleError: If the step cannot process these sizes.
        """
        raise NotImplementedError

    @property
    def can_prepare(self) -> bool:
        """Whether the step defines `prepare` in place of `torch`."""
        return type(self).torch is BatchStep.torch


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
