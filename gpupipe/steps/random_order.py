"""random_order: run all steps of a list, in an order drawn for each sample."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.pipeline.container import Container, NestedStep, merge_values, min_sizes
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, StepIncompatibleError, Uniforms


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
