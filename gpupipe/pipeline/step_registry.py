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
    "lambda": "write 'python: {call: module:function}' (docs/howto/function.md)",
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


ALBUMENTATIONS = {
    "HorizontalFlip": "random_horizontal_flip",
    "VerticalFlip": "random_vertical_flip",
    "RandomBrightnessContrast": "random_brightness_contrast",
    "HueSaturationValue": "color_jitter",
    "Affine": "random_affine",
    "ShiftScaleRotate": "random_affine",
    "Rotate": "random_rotation",
    "SafeRotate": "random_rotation",
    "Perspective": "random_perspective",
    "GaussNoise": "gaussian_noise",
    "ImageCompression": "jpeg",
    "CoarseDropout": "coarse_dropout",
    "Erasing": "random_erasing",
    "RandomRotate90": "random_rotate_90",
    "ToGray": "random_grayscale",
    "Solarize": "random_solarize",
    "Posterize": "random_posterize",
    "Equalize": "random_equalize",
    "InvertImg": "random_invert",
    "Sharpen": "random_adjust_sharpness",
    "SmallestMaxSize": "resize",
    "LongestMaxSize": "resize",
    "PadIfNeeded": "pad",
    "OneOf": "random_choice",
    "SomeOf": "random_choice",
}
"""Maps classes of albumentations to the steps that do the like."""


def _advise_on_albumentations(name: str) -> str:
    """Return advice for an unknown step name that albumentations has; "" for other names."""
    short = name.removeprefix("albumentations.").removeprefix("A.")
    if short == "ToTensorV2":
        return f"{_TO_FLOAT}; batches are tensors already"
    snake = to_snake_case(short)
    if step := ALBUMENTATIONS.get(short) or (snake if snake in STEPS.names() else ""):
        return (
            f"albumentations has it; the like here is '{step}', and gpupipe.from_albumentations() "
            "converts a whole Compose"
        )
    own = short != name
    return f"it is of albumentations, and no plugin has it: {_OWN_STEP}" if own else ""


_OF_BATCHES = Registry("batch step", "gpupipe.batch_stage.steps", object, BATCH_STEP_GROUP)


def _advise(name: str) -> str:
    """Return the message about an unknown step name; "" lets the caller write the usual message."""
    if name in _OF_BATCHES.names():
        return f"'{name}' works on whole batches: write it under 'batch:'"
    step, colon, _ = name.partition(":")
    if colon and step in STEPS.names():
        return f"'{name}': a blank is missing after the colon: write '{step}: ...'"
    advice = advise_on_torchvision(name, STEPS.names()) or _advise_on_albumentations(name)
    return f"there is no step '{name}': {advice}" if advice else ""


STEPS = Registry("step", "gpupipe.steps", Step, advise=_advise)
