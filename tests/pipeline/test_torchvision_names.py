from __future__ import annotations

import inspect

from torchvision.transforms import v2

from gpupipe.pipeline.step_registry import STEPS
from gpupipe.pipeline.torchvision_names import advise, to_snake_case

NO_TRANSFORMS = {"AutoAugmentPolicy", "InterpolationMode", "Transform"}
CLASSES = [n for n, c in vars(v2).items() if inspect.isclass(c) and n not in NO_TRANSFORMS]


def test_every_transform_of_torchvision_is_a_step_or_has_advice() -> None:
    steps = STEPS.names()
    for name in CLASSES:
        advice = advise(name, steps)
        if to_snake_case(name) in steps:
            assert advice == f"write '{to_snake_case(name)}'", name
        else:
            assert advice, name
            assert advise(to_snake_case(name), steps) == advice, name
