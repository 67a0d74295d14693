"""random_apply, random_choice and random_order run steps of a list; identity does nothing.

They draw which steps each sample goes through. A sample that no step changes costs no time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupipe.dataset.spec import Values
from gpupipe.pipeline.container import Container, NestedStep, WeightedChoice
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

_SHARED = ("dtype", "channels", "layout", "other_sizes")
"""The parts of a Spec that all samples of a field must share after a container."""


class RandomApply(Container):
    """Run all steps of a list, or none, as torchvision.transforms.v2.RandomApply.

    The samples that are left alone cost no time.

    Attributes:
        transforms: The steps.
        p: The probability that the steps run, 0 to 1. The default is 0.5.
    """

    p: Probability = 0.5

    example = {"transforms": [{"random_rotation": {"degrees": 90}}]}
    own_uniforms = 1

    def draw(self, u: Uniforms) -> Sampled:
        """Return a dict: `runs`, int32 (B,) for B samples: 1 to run the steps, else 0."""
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
        p: A weight for each step, 0 or more. The probability of a step is its weight divided by the
            sum of the weights. By default all steps are equally probable.
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

    Each step must accept the output of every other, so none may change the dtype or the channels.

    Attributes:
        transforms: The steps.
    """

    example = {"transforms": [{"random_rotation": {"degrees": 60}}, "random_horizontal_flip"]}

    @property
    def own_uniforms(self) -> int:  # type: ignore[override]
        """The number of uniform draws: one per step. Sorting the draws yields the steps' order."""
        return len(self.transforms)

    def draw(self, u: Uniforms) -> Sampled:
        """Return a dict: `order`, int32 (B, steps), each sample's step indices as they run."""
        return {"order": np.argsort(u, axis=-1, kind="stable").astype(np.int32)}

    def chain(self, input_spec: Spec) -> tuple[tuple[NestedStep, ...], Spec]:
        # A step may come after any other. So all steps are resolved for an image whose size is
        # unknown if one of them changes it.
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
        """Do nothing: the image stays as it is."""

    def torch(self, image: Any, p: Params) -> Any:
        return image


def differs_in_kind(one: Spec, other: Spec) -> bool:
    """Return whether two specs differ in dtype, channels, layout or non-spatial sizes."""
    return any(getattr(one, name) != getattr(other, name) for name in _SHARED)


@dataclass(frozen=True)
class Way:
    """What a container may do with a sample, such as run all of its steps, and the result.

    Attributes:
        name: What the container runs, for messages: "all steps", "no step" or the name of a step.
        where: The YAML location of the step that may change dtype, channels or layout; "" if none.
        spec: The spec of the samples that come out.
    """

    name: str
    where: str
    spec: Spec


def merge_specs(input_spec: Spec, ways: Sequence[Way]) -> Spec:
    """Return one spec for all samples that come out of a container, whatever it did with each.

    Args:
        input_spec: The spec of the container's input.
        ways: All that the container may do with a sample, at least one entry.

    Returns:
        The spec, with None for each size that differs. Its `pixels.values` are the result of
        `merge_values`.

    Raises:
        StepIncompatibleError: If dtypes, channels or layouts differ.
    """
    specs = [way.spec for way in ways]
    for shared in _SHARED:
        values = [getattr(spec, shared) for spec in specs]
        if any(value != values[0] for value in values):
            changed = next(n for n, v in enumerate(values) if v != getattr(input_spec, shared))
            other = next(n for n, v in enumerate(values) if v != values[changed])
            raise StepIncompatibleError(
                f"the {shared.replace('_', ' ')} would differ from sample to sample: "
                f"{values[changed]} after {ways[changed].name}, {values[other]} after "
                f"{ways[other].name}: move the step that changes it out of the list",
                ways[changed].where,
            )
    sides = [
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*(spec.sides for spec in specs), strict=True)
    ]
    return specs[0].with_size(sides, min_sizes(specs)).with_values(merge_values(specs))


def min_sizes(specs: Sequence[Spec]) -> tuple[int, ...]:
    """Return the lower bound of the size along each axis: the minimum over the specs."""
    return tuple(min(sizes) for sizes in zip(*(spec.at_least for spec in specs), strict=True))


def merge_values(specs: Sequence[Spec]) -> Values:
    """Return "usual" if the `pixels.values` of all specs are that, else the first that is not."""
    return next((s.pixels.values for s in specs if s.pixels.values != "usual"), "usual")
