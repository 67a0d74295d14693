"""random_choice: run one step of a list, drawn for each batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from gpupipe.augment.weighted_choice import Weight, check_weights, choose_by_weight
from gpupipe.batch_stage.batch_container import BatchContainer
from gpupipe.pipeline.container import select_params
from gpupipe.pipeline.step import Params

if TYPE_CHECKING:
    from torch import Tensor


class RandomStepChoice(BatchContainer):
    """Run one step of a list, as torchvision.transforms.v2.RandomChoice on a batch.

    The choice depends on all samples of the batch.

    Attributes:
        transforms: The steps, such as mixup and cutmix.
        p: A weight for each step, 0 or more; divided by their sum, they are its probability. By
            default all steps are equally probable.
    """

    p: tuple[Weight, ...] | None = None

    own_uniforms: ClassVar[int] = 1

    @model_validator(mode="after")
    def _check_weights(self) -> RandomStepChoice:
        check_weights(self.p, len(self.transforms))
        return self

    def draw(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Return choice: int32 (N,), the number of each batch's step, from 0."""
        return {"choice": choose_by_weight(self.p, len(self.transforms), u[:, 0])}

    def torch(
        self, images: Mapping[str, Tensor], labels: Tensor, p: Params
    ) -> tuple[dict[str, Tensor], Tensor]:
        number = int(p["choice"])
        chosen = {"shift": p["shift"], **select_params(number, p)}
        return self.transforms[number].step.torch(images, labels, chosen)
