"""random_apply: run a list of steps with a given probability."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpupipe.pipeline.container import Container, NestedStep, Way, differs_in_kind, merge_specs
from gpupipe.pipeline.step import Params, Primitives, Sampled, Spec, Uniforms
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
