"""random_apply, random_choice and random_order run steps of a list; identity does nothing.

They draw which steps each sample goes through. A sample that no step changes costs no time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.pipeline.container import (
    Container,
    NestedStep,
    Way,
    WeightedChoice,
    differs_in_kind,
    merge_specs,
    merge_values,
    min_sizes,
)
from gpupipe.pipeline.step import (
    Params,
    Primitives,
    Sampled,
    Spec,
    Step,
    StepIncompatibleError,
    Uniforms,
)
from gpupipe.schema.field_types import Probability


class RandomApply(Container):
    """Run all steps of a list, or none, as torchvision.transforms.v2.RandomApply.

    The samples that are left alone cost no time.

    Attributes:
        transforms: The steps.
        p: The probability that they run, 0 to 1. The default is 0.5.
    """

    p: Probability = 0.5

    example = {"transforms": [{"random_rotation": {"degrees": 90}}]}
    own_uniforms = 1

    def draw(self, u: Uniforms) -> Sampled:
        """Return runs: int32 (B,), 1 for the samples that go through the steps, else 0."""
        return {"runs": (u[:, 0] < self.p).astype(np.int32)}

    def chain(self, input_spec: Spec) -> tuple[tuple[NestedStep, ...], Spec]:
        steps, spec, changed = [], input_spec, ""
        for nested in self.transforms:
            step, output_spec = nested.resolve(spec)
            changed = nested.where if differs_in_kind(spec, output_spec) else changed
            steps.append(step)
            spec = output_spec
        ways = [Way("no step", "", input_spec), Way("all steps", changed, spec)]
        return tuple(steps), merge_specs(input_spec, ways)

    def lower(self, image: Primitives, p: Params) -> None:
        def run_all(part: Primitives) -> None:
            for number in range(len(self.transforms)):
                self.lower_step(number, part, p)

        image.switch(p["runs"], [lambda part: None, run_all])

    def torch(self, image: Any, p: Params) -> Any:
        if p["runs"]:
            for number in range(len(self.transforms)):
                image = self.torch_step(number, image, p)
        return image


class RandomChoice(Container, WeightedChoice):
    """Run one step of a list, as torchvision.transforms.v2.RandomChoice.

    Each sample costs the time of its own step only.

    Attributes:
        transforms: The steps.
        p: A weight for each step, 0 or more; divided by their sum, they are its probability. By
            default all steps are equally probable.
    """

    example = {"transforms": ["random_horizontal_flip", {"random_rotation": {"degrees": 90}}]}

    def chain(self, input_spec: Spec) -> tuple[tuple[NestedStep, ...], Spec]:
        both = [nested.resolve(input_spec) for nested in self.transforms]
        ways = [Way(nested.name, nested.where, output_spec) for nested, output_spec in both]
        return tuple(nested for nested, _ in both), merge_specs(input_spec, ways)

    def lower(self, image: Primitives, p: Params) -> None:
        image.switch(p["choice"], self.list_branches(p))

    def torch(self, image: Any, p: Params) -> Any:
        return self.torch_step(int(p["choice"]), image, p)


class RandomOrder(Container):
    """Run all steps of a list in a random order, as torchvision.transforms.v2.RandomOrder.

    Each step must take what any other one makes, so none may change the dtype or the channels.

    Attributes:
        transforms: The steps.
    """

    example = {"transforms": [{"random_rotation": {"degrees": 60}}, "random_horizontal_flip"]}

    @property
    def own_uniforms(self) -> int:  # type: ignore[override]
        """One draw per step: sorting the draws yields the order of the steps."""
        return len(self.transforms)

    def draw(self, u: Uniforms) -> Sampled:
        """Return order: int32 (B, steps), the indices of the steps in the order of execution."""
        return {"order": np.argsort(u, axis=-1, kind="stable").astype(np.int32)}

    def chain(self, input_spec: Spec) -> tuple[tuple[NestedStep, ...], Spec]:
        # A step may come after any other. What they all take is an image whose size is not known
        # where one of them changes it.
        outputs = [nested.resolve(input_spec)[1] for nested in self.transforms]
        kept = all(output.sides == input_spec.sides for output in outputs)
        sides = input_spec.sides if kept else (None,) * len(input_spec.sides)
        lowest = min_sizes([input_spec, *outputs])
        values = merge_values([input_spec, *outputs])
        any_spec = input_spec.with_size(sides, lowest).with_values(values)
        steps = []
        for nested in self.transforms:
            resolved, output = nested.resolve(any_spec)
            if output.with_size(any_spec.sides, lowest).with_values(values) != any_spec:
                raise StepIncompatibleError(
                    f"{nested.name} makes {output} out of {any_spec}, which the steps after it in "
                    "any order must take: move it out of the list",
                    nested.where,
                )
            steps.append(resolved)
        return tuple(steps), any_spec

    def lower(self, image: Primitives, p: Params) -> None:
        branches = self.list_branches(p)
        for place in range(len(self.transforms)):
            image.switch(p["order"][..., place], branches)

    def torch(self, image: Any, p: Params) -> Any:
        for number in p["order"]:
            image = self.torch_step(int(number), image, p)
        return image


class Identity(Step):
    """Leave everything as it is, as torchvision.transforms.v2.Identity.

    It takes no time. In random_choice it is the alternative that changes nothing.
    """

    def lower(self, image: Primitives, p: Params) -> None:
        """Call no primitive."""

    def torch(self, image: Any, p: Params) -> Any:
        return image
