"""STEPS finds steps by name: the built-in ones, and those of installed plugins.

If an unknown name is from torchvision.transforms.v2, the error message has advice. For that,
torchvision's CamelCase class names are converted to snake_case, the form of step names.
"""

import re
from collections.abc import Collection

from gpupipe.pipeline.step import Step
from gpupipe.runtime.registry import BATCH_STEP_GROUP, Registry

_TO_FLOAT = "write 'to_dtype: {dtype: float32, scale: true}'"
_TENSORS = "leave it out: 'decode' makes tensors"
_OWN_STEP = "write a step of your own (CONTRIBUTING.md)"
_ADVICE = {
    "to_tensor": f"{_TO_FLOAT}; batches are tensors already",
    "convert_image_dtype": _TO_FLOAT,
    **dict.fromkeys("to_pil_image to_image pil_to_tensor to_pure_tensor".split(), _TENSORS),
    "compose": "write the steps one after another under 'pipeline:'",
    "lambda": f"a function cannot stand in YAML: {_OWN_STEP}",
    "cut_mix": "write 'cutmix' under 'batch:'",
    "mix_up": "write 'mixup' under 'batch:'",
    "uniform_temporal_subsample": "a pipeline has no videos: choose the frames beforehand",
}


def to_snake_case(name: str) -> str:
    """Convert a class name to a step's name: RandomCrop to random_crop, RGB to rgb."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return spaced.lower().replace("io_u", "iou").replace("key_points", "keypoints")


def advise_on_torchvision(name: str, steps: Collection[str]) -> str:
    """Return advice for an unknown step name that torchvision has; "" for other names.

    Args:
        name: The unknown name, as torchvision writes it or in snake_case.
        steps: The names of all steps.
    """
    snake = to_snake_case(name)
    if snake != name and snake in steps:
        return f"write '{snake}'"
    return _ADVICE.get(snake, "")


_OF_BATCHES = Registry("batch step", "gpupipe.batch_stage.steps", object, BATCH_STEP_GROUP)


def _advise(name: str) -> str:
    """Return the message about an unknown step name; "" lets the caller write the usual message."""
    if name in _OF_BATCHES.names():
        return f"'{name}' works on whole batches: write it under 'batch:'"
    advice = advise_on_torchvision(name, STEPS.names())
    return f"there is no step '{name}': {advice}" if advice else ""


STEPS = Registry("step", "gpupipe.steps", Step, advise=_advise)
