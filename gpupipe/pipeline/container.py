"""Containers: the bases of steps that hold other steps, such as random_apply and random_choice.

A container draws which of its steps process each sample. Of a sample's uniform draws, the first
ones are for the container itself, and the rest are for its steps, in order.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, SerializationInfo, model_serializer, model_validator

from gpupipe.pipeline.spec_checks import check_decoded
from gpupipe.pipeline.step import (
    BaseStep,
    Params,
    Primitives,
    Sampled,
    Spec,
    Step,
    StepIncompatibleError,
    Uniforms,
)
from gpupipe.runtime.failures import is_foreign
from gpupipe.runtime.user_functions import UserCall
from gpupipe.schema.field_types import NotNegative, should_be


class BaseNestedStep(pydantic.BaseModel):
    """A step inside a container: a step on samples, or a step on batches.

    Attributes:
        name: The step's name in YAML.
        step: The step with its parameters.
        where: The step's location in the YAML, for messages.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: str
    step: BaseStep
    where: str = Field("", exclude=True)

    @model_serializer
    def _serialize(self, info: SerializationInfo) -> dict[str, Any]:
        """Return the step in its YAML form, {name: parameters}."""
        dumped = self.step.model_dump(mode=info.mode, exclude_none=info.exclude_none)
        return {self.name: dumped}


class NestedStep(BaseNestedStep):
    """A step on samples inside a container; see BaseNestedStep."""

    step: Step
    _input_spec: Spec = pydantic.PrivateAttr(Spec())
    """The spec of the step's input; `resolve` sets it."""

    def resolve(self, input_spec: Spec) -> "tuple[NestedStep, Spec]":
        """Return a copy whose step has its short forms expanded, and the spec of the step's output.

        Raises:
            StepIncompatibleError: If the step cannot process such an input.
        """
        if not self.step.can_be_nested:
            raise StepIncompatibleError(
                f"{self.name} changes what all samples of a batch share: move it out of the list",
                self.where,
            )
        try:
            step = self.step.resolve(input_spec)
            output_spec = replace(step.infer_spec(input_spec), kind=input_spec.kind)
        except StepIncompatibleError as e:
            raise StepIncompatibleError(f"{self.name}: {e}", e.where or self.where) from None
        resolved = self.model_copy(update={"step": step})
        resolved._input_spec = input_spec
        return resolved, output_spec

    def lower(self, image: Primitives, p: Params) -> None:
        """Apply the step to a batch by calling primitives."""
        image.spec = self._input_spec
        self.step.decide_and_lower(image, p)


def check_nested(value: Any) -> Any:
    """Return the value of `transforms`; raise an error unless it is a non-empty list."""
    if not isinstance(value, list | tuple) or not value:
        raise should_be("a list of steps, each '- name: {parameter: value}' or '- name'")
    return value


class BaseContainer(BaseStep):
    """The base of all containers, which are steps that hold other steps.

    It draws the parameters of the container and of its steps. Subclasses define `own_uniforms`, the
    number of draws for the container itself, and `draw`.

    Attributes:
        transforms: The steps inside the container, in order.
    """

    transforms: Annotated[tuple[BaseNestedStep, ...], BeforeValidator(check_nested)]

    own_uniforms: ClassVar[int] = 1

    @property
    def num_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws per sample or batch, for the container and its steps."""
        return self.own_uniforms + sum(nested.step.num_uniforms for nested in self.transforms)

    def draw(self, u: Uniforms) -> Sampled:
        """Compute the container's own parameters from uniform draws `u`, (N, own_uniforms)."""
        raise NotImplementedError

    def is_needed(self, number: int, drawn: Sampled) -> bool:
        """Return whether step `number` needs parameters; by default, each does.

        Args:
            number: The position of the step.
            drawn: The container's own parameters, from `draw`.
        """
        return True

    def sample(self, u: Uniforms) -> Sampled:
        """Compute the parameters of the container and of its steps from uniform draws `u`.

        Returns:
            A dict: the arrays from `draw`, and the arrays from the `sample` of each step that needs
            any. The key "2.angle" stands for the array "angle" of step 2, counted from 0.
        """
        sampled, first = self.draw(u[:, : self.own_uniforms]), self.own_uniforms
        for number, nested in enumerate(self.transforms):
            last = first + nested.step.num_uniforms
            if not self.is_needed(number, sampled):
                first = last
                continue
            drawn = nested.step.sample(u[:, first:last]) | nested.step.list_undecided(len(u))
            sampled |= {f"{number}.{name}": values for name, values in drawn.items()}
            first = last
        return sampled


class WeightedChoice(BaseContainer):
    """The base of containers that draw one of their steps at random.

    `p` holds the weight of each step; if it is None, all steps are equally probable.
    """

    p: tuple[NotNegative, ...] | None = None

    own_uniforms = 1

    @model_validator(mode="after")
    def _check_weights(self) -> Self:
        if self.p is not None and len(self.p) != len(self.transforms):
            count = f"{len(self.p)} numbers for {len(self.transforms)} steps"
            raise ValueError(f"p has {count}: write one per step")
        if self.p is not None and not sum(self.p):
            raise ValueError("p has no number above 0: write the weight of each step")
        return self

    def draw(self, u: Uniforms) -> Sampled:
        """Draw one step for each sample or batch.

        Returns:
            A dict: "choice", int32 (N,), the index of the drawn step.
        """
        return {"choice": choose_by_weight(self.p, len(self.transforms), u[:, 0])}


def choose_by_weight(
    weights: Sequence[float] | None, count: int, u: NDArray[np.float64]
) -> NDArray[Any]:
    """Return the index of one step, 0 to count - 1, for each uniform draw: int32 (B,).

    Args:
        weights: The weight of each step; None if all are equally probable.
        count: The number of steps.
        u: Uniform draws in [0, 1), float64 (B,).
    """
    bounds, last = _find_bounds(tuple(weights or [1.0] * count))
    return np.minimum(np.searchsorted(bounds, u, side="right"), last).astype(np.int32)


@lru_cache(maxsize=64)
def _find_bounds(weights: tuple[float, ...]) -> tuple[NDArray[np.float64], int]:
    """Return the sums of the shares up to each step, and the last step that has a weight."""
    shares = np.array(weights)
    return np.cumsum(shares / shares.sum()), int(np.flatnonzero(shares)[-1])


class Container(BaseContainer, Step):
    """The base of steps on samples that hold other steps.

    Subclasses define `own_uniforms`, `draw`, `chain`, `lower` and `torch`.

    Attributes:
        transforms: The steps inside the container, in order.
    """

    transforms: Annotated[tuple[NestedStep, ...], BeforeValidator(check_nested)]

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """The kinds of annotations without which one of the steps makes no sense."""
        return frozenset().union(*(nested.step.needs for nested in self.transforms))

    @property
    def empties_boxes(self) -> bool:  # type: ignore[override]
        """Whether one of the steps makes boxes [0, 0, 0, 0]."""
        return any(nested.step.empties_boxes for nested in self.transforms)

    def explain_refusal(self) -> str:
        return next((why for n in self.transforms if (why := n.step.explain_refusal())), "")

    @property
    def interpolates(self) -> bool:  # type: ignore[override]
        """Whether one of the steps computes values between pixels."""
        return any(nested.step.interpolates for nested in self.transforms)

    @property
    def has_torch(self) -> bool:
        """Whether all of the steps have a torch lowering."""
        return all(nested.step.has_torch for nested in self.transforms)

    @property
    def runs_unknown_code(self) -> bool:  # type: ignore[override]
        """Whether one of the steps runs code that gpupipe does not know."""
        return any(
            nested.step.runs_unknown_code or is_foreign(type(nested.step))
            for nested in self.transforms
        )

    @property
    def calls_user_code(self) -> bool:  # type: ignore[override]
        """Whether one of the steps calls functions of the user's."""
        return any(nested.step.calls_user_code for nested in self.transforms)

    def list_calls(self) -> list[UserCall]:
        return [call for nested in self.transforms for call in nested.step.list_calls()]

    def release(self) -> None:
        for nested in self.transforms:
            nested.step.release()

    def chain(self, input_spec: Spec) -> tuple[tuple[NestedStep, ...], Spec]:
        """Return the steps with their short forms expanded, and the spec of the container's output.

        Raises:
            StepIncompatibleError: If a step cannot process its input, or the outputs of the steps
                do not fit together.
        """
        raise NotImplementedError

    def resolve(self, input_spec: Spec) -> Self:
        resolved = super().resolve(input_spec)
        steps, _ = self.chain(check_decoded(input_spec))
        return resolved.model_copy(update={"transforms": steps})

    def infer_spec(self, input_spec: Spec) -> Spec:
        return self.chain(check_decoded(input_spec))[1]

    def adapt_to_mask(self) -> Self:
        adapted = tuple(
            nested.model_copy(update={"step": nested.step.adapt_to_mask()})
            for nested in self.transforms
        )
        return self.model_copy(update={"transforms": adapted})

    def lower_step(self, number: int, image: Primitives, p: Params) -> None:
        """Apply step `number` to a batch, by calling primitives of `image`."""
        self.transforms[number].lower(image, select_params(number, p))

    def list_branches(self, p: Params) -> list[Callable[[Primitives], None]]:
        """Return for each step a function that applies it to a batch, for Primitives.switch."""
        return [partial(self.lower_step, number, p=p) for number in range(len(self.transforms))]

    def torch_step(self, number: int, image: Any, p: Params) -> Any:
        """Apply step `number` to one image, in torch."""
        return self.transforms[number].step.torch(image, select_params(number, p))


def select_params(number: int, p: Params) -> Mapping[str, Any]:
    """Return a container's parameters for step `number`: "NUMBER.name" in `p` becomes "name"."""
    prefix = f"{number}."
    return {name.removeprefix(prefix): v for name, v in p.items() if name.startswith(prefix)}
