"""BatchContainer: the base of steps of the batch stage that hold other steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_serializer

from gpupipe.batch_stage.batch_step import BatchField, BatchStep
from gpupipe.pipeline.container import check_nested, sample_nested
from gpupipe.pipeline.step import StepIncompatible


class NestedBatchStep(pydantic.BaseModel):
    """A step inside a container.

    Attributes:
        name: The step's name in YAML.
        step: The step.
        where: Its place in the YAML, for messages.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: str
    step: BatchStep
    where: str = Field("", exclude=True)

    @model_serializer
    def _write(self) -> dict[str, Any]:
        """Return the step as the YAML has it: {name: parameters}."""
        return {self.name: self.step.model_dump(mode="json", exclude_none=True)}


class BatchContainer(BatchStep):
    """The base of steps that hold other steps. Subclasses define `own_uniforms`, `draw`, `torch`.

    The container's own draws come first, then those of its steps, in order.

    Attributes:
        transforms: The steps.
    """

    transforms: Annotated[tuple[NestedBatchStep, ...], BeforeValidator(check_nested)]

    own_uniforms: ClassVar[int] = 0

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws that one batch needs."""
        return self.own_uniforms + sum(nested.step.num_uniforms for nested in self.transforms)

    @property
    def mixes_samples(self) -> bool:  # type: ignore[override]
        """Whether one of the steps mixes the samples of a batch with each other."""
        return any(nested.step.mixes_samples for nested in self.transforms)

    def list_num_classes(self) -> list[int]:
        nested = [n for inner in self.transforms for n in inner.step.list_num_classes()]
        return super().list_num_classes() + nested

    def check(self, fields: Mapping[str, BatchField]) -> None:
        for nested in self.transforms:
            try:
                nested.step.check(fields)
            except StepIncompatible as e:
                raise StepIncompatible(f"{nested.name}: {e}", e.where or nested.where) from None

    def draw(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Turn the container's own draws, (N, own_uniforms), into its parameters."""
        raise NotImplementedError

    def sample(self, u: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
        """Draw for the container, and for all of its steps.

        Returns:
            What `draw` returns; and for each step what its `sample` returns, under "NUMBER.name".
        """
        own = self.draw(u[:, : self.own_uniforms])
        return own | sample_nested([n.step for n in self.transforms], u[:, self.own_uniforms :])
