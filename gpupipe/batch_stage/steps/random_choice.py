"""random_choice: run one step of a list, drawn for each batch."""

from typing import TYPE_CHECKING

from gpupipe.batch_stage.batch_step import (
    BatchContainer,
    BatchStep,
    Images,
    MixedBatch,
    MixFunctions,
    Sizes,
)
from gpupipe.pipeline.container import WeightedChoice, select_params
from gpupipe.pipeline.step import Params, Sampled

if TYPE_CHECKING:
    from torch import Tensor


class RandomStepChoice(BatchContainer, WeightedChoice):
    """Run one step of a list, as torchvision.transforms.v2.RandomChoice on a batch.

    The choice depends on all samples of the batch.

    Attributes:
        transforms: The steps, such as mixup and cutmix.
        p: The weight of each step, 0 or more. A step's probability is its weight, divided by the
            sum of all weights. By default all steps are equally probable.
    """

    def is_needed(self, number: int, drawn: Sampled) -> bool:
        return number in drawn["choice"]

    @property
    def can_prepare(self) -> bool:
        """Whether all of the steps define `prepare` in place of `torch`."""
        is_own = type(self).torch is RandomStepChoice.torch
        return is_own and all(nested.step.can_prepare for nested in self.transforms)

    def torch(self, images: Images, labels: "Tensor", p: Params) -> MixedBatch:
        step, chosen = self._choose(p)
        return step.torch(images, labels, chosen)

    def prepare(self, sizes: Sizes, num_classes: int, p: Params) -> MixFunctions:
        step, chosen = self._choose(p)
        return step.prepare(sizes, num_classes, chosen)

    def _choose(self, p: Params) -> tuple[BatchStep, Params]:
        """Return the step that runs, and its parameters."""
        number = int(p["choice"])
        shared = {name: p[name] for name in ("shift", "memory") if name in p}
        return self.transforms[number].step, {**shared, **select_params(number, p)}
