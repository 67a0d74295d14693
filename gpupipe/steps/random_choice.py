"""random_choice: run one step of a list, drawn for each sample."""

from __future__ import annotations

from typing import Any

from gpupipe.pipeline.container import Container, NestedStep, Way, WeightedChoice, merge_specs
from gpupipe.pipeline.step import Params, Primitives, Spec


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
