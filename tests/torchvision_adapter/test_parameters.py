"""Each torchvision class becomes its step, with the parameters of the object."""

from typing import Any

import pytest
import torch
import yaml
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

import gpupipe
from gpupipe.dataset.spec import Spec
from gpupipe.pipeline import step_registry
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.schema import yaml_files
from helpers.every_step import FEW_PIXELS, NEED_ANNOTATIONS
from helpers.every_step import STEPS as STEPS_ON_TENSORS

CLASSES = {
    name.lower(): name
    for name in dir(v2)
    if isinstance(getattr(v2, name), type) and issubclass(getattr(v2, name), v2.Transform)
}
STEPS = {
    step: CLASSES[step.replace("_", "")]
    for step in sorted(step_registry.STEPS.builtin_names)
    if step.replace("_", "") in CLASSES
}
"""The torchvision class of each step that has one."""
CONTAINERS = ("random_apply", "random_choice", "random_order")
OF_VIEWS = ("five_crop", "ten_crop")
"""They make several images of one, and so stand in no list of steps."""
FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "aug_mix": [{}, {"severity": 5, "mixture_width": 2, "chain_depth": 3, "alpha": 0.5}],
    "auto_augment": [{}, {"interpolation": "bilinear", "fill": [1, 2, 3]}],
    "clamp_bounding_boxes": [{}, {"clamping_mode": "hard"}, {"clamping_mode": None}],
    "convert_bounding_box_format": [{"format": "CXCYWH"}, {"format": "xyxy"}],
    "random_iou_crop": [
        {},
        {"min_scale": 0.5, "max_aspect_ratio": 1.5, "sampler_options": [0.2, 1.0], "trials": 9},
    ],
    "sanitize_bounding_boxes": [{}, {"min_size": 2.0, "min_area": 9.0}],
    "set_clamping_mode": [{"clamping_mode": None}, {"clamping_mode": "soft"}],
    "center_crop": [{"size": 20}, {"size": [20, 30]}],
    "color_jitter": [
        {},
        {"brightness": 0.4, "contrast": [0.5, 1.5], "saturation": 0.2, "hue": [-0.1, 0.2]},
    ],
    "elastic_transform": [
        {},
        {"alpha": 20.0, "sigma": [2.0, 3.0], "interpolation": "nearest", "fill": [1, 2, 3]},
    ],
    "gaussian_noise": [{}, {"mean": 0.1, "sigma": 0.2}],
    "gaussian_blur": [{"kernel_size": 5}, {"kernel_size": [3, 7], "sigma": 1.5}],
    "grayscale": [{}, {"num_output_channels": 3}],
    "jpeg": [{"quality": 40}, {"quality": [40, 90]}],
    "linear_transformation": [STEPS_ON_TENSORS["linear_transformation"][0]],
    "normalize": [{"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]}],
    "pad": [
        {"padding": 4},
        {"padding": [1, 2], "fill": 3},
        {"padding": [1, 2, 3, 4], "fill": [1, 2, 3]},
        {"padding": 2, "padding_mode": "reflect"},
    ],
    "rand_augment": [{}, {"num_ops": 3, "magnitude": 5, "num_magnitude_bins": 11, "fill": 7}],
    "random_adjust_sharpness": [{"sharpness_factor": 2, "p": 0.3}],
    "random_affine": [
        {"degrees": 10},
        {"degrees": [-5, 15], "translate": [0.1, 0.2], "scale": [0.5, 1.5], "shear": 8},
        {"degrees": 0, "shear": [1, 2, 3, 4], "interpolation": "bilinear", "center": [3, 4]},
        {"degrees": 0, "shear": [1, 2], "fill": [1, 2, 3]},
    ],
    "random_crop": [
        {"size": 20},
        {"size": [20, 24], "padding": 4, "fill": 9},
        {"size": 20, "padding": [1, 2, 3, 4]},
        {"size": 20, "padding": [1, 2], "pad_if_needed": True, "padding_mode": "edge"},
    ],
    "random_erasing": [
        {},
        {"p": 0.1, "scale": [0.1, 0.2], "ratio": [0.5, 2.0], "value": 3.0},
        {"value": [1.0, 2.0, 3.0]},
    ],
    "random_perspective": [{}, {"distortion_scale": 0.3, "p": 0.2, "fill": 5}],
    "random_photometric_distort": [{}, {"brightness": [0.5, 1.5], "hue": [-0.1, 0.1], "p": 0.1}],
    "random_posterize": [{"bits": 3}],
    "random_resize": [{"min_size": 20, "max_size": 40, "interpolation": "bicubic"}],
    "random_resized_crop": [
        {"size": 20},
        {"size": [20, 24], "scale": [0.2, 0.9], "ratio": [0.5, 2.0], "antialias": False},
    ],
    "random_rotation": [
        {"degrees": 10},
        {"degrees": [0, 90], "interpolation": "bilinear", "expand": True, "fill": 4},
        {"degrees": 5, "center": [3, 4]},
    ],
    "random_shortest_size": [{"min_size": 20}, {"min_size": [20, 30], "max_size": 50}],
    "random_solarize": [{"threshold": 100, "p": 0.2}],
    "random_zoom_out": [{}, {"fill": 3, "side_range": [1.5, 2.0], "p": 0.9}],
    "resize": [{"size": 20}, {"size": [20, 30]}, {"size": [20, 20]}, {"size": 20, "max_size": 50}],
    "scale_jitter": [{"target_size": [20, 30], "scale_range": [0.5, 1.5]}],
    "to_dtype": [{"dtype": "float32", "scale": True}, {"dtype": "float16", "scale": True}],
    "trivial_augment_wide": [{}, {"num_magnitude_bins": 11, "interpolation": "bilinear"}],
}
"""What torchvision's constructor gets, and what a user writes in YAML. Steps that are not here get
their example.
"""
CASES = {
    step: ARGUMENTS.get(step, [dict(step_registry.STEPS.find(step).example)])
    for step in STEPS
    if step not in (*CONTAINERS, *OF_VIEWS)
}


def build(text: str) -> Pipeline:
    """Build a pipeline; of images with boxes and points if a step needs them."""
    needed = any(f"{name}:" in text or f"- {name}\n" in text for name in NEED_ANNOTATIONS)
    specs = {"boxes": Spec.of_boxes(), "points": Spec.of_points()} if needed else {}
    return build_pipeline("p", yaml_files.parse(text, "p.yaml"), annotations=specs)


def write(*steps: Any) -> str:
    return yaml.safe_dump(["decode", *steps])


def make(module: Any, step: str, arguments: dict[str, Any]) -> Any:
    """Construct torchvision's object as its users do, with a dtype of torch."""
    if "dtype" in arguments:
        arguments = arguments | {"dtype": getattr(torch, arguments["dtype"])}
    if step == "linear_transformation":
        arguments = {name: torch.tensor(numbers) for name, numbers in arguments.items()}
    return getattr(module, STEPS[step])(**arguments)


BEFORE: dict[str, tuple[dict[str, Any], v2.Transform]] = {
    "linear_transformation": (
        {"center_crop": {"size": list(FEW_PIXELS)}},
        v2.CenterCrop(FEW_PIXELS),
    ),
    "normalize": (FLOATS, v2.ToDtype(torch.float32, scale=True)),
    **dict.fromkeys(
        ("elastic_transform", "gaussian_noise"),
        ({"center_crop": {"size": [40, 40]}}, v2.CenterCrop(40)),
    ),
}
"""What must come before a step, in YAML and as torchvision's object."""


def adapt(transform: Any, step: str = "") -> str:
    before = [BEFORE[step][1]] if step in BEFORE else []
    return gpupipe.from_torchvision(v2.Compose([*before, transform])).to_yaml()


@pytest.mark.parametrize("step", CASES)
def test_a_step_has_the_parameters_that_a_user_would_write(step: str) -> None:
    before = [BEFORE[step][0]] if step in BEFORE else []
    for arguments in CASES[step]:
        by_hand = build(write(*before, {step: arguments}))
        for module in (v2, v1):
            if hasattr(module, STEPS[step]):
                found = build(adapt(make(module, step, arguments), step))
                assert [e.key for e in found.entries] == [e.key for e in by_hand.entries]
                assert found.entries[-1].dump() == by_hand.entries[-1].dump(), arguments
                assert found.fingerprint == by_hand.fingerprint, arguments


def test_no_parameter_of_torchvision_is_passed_over() -> None:
    without_meaning = {"training", "inplace", "labels_getter"}
    without_meaning |= {"options"}  # of RandomIoUCrop: what it makes of sampler_options
    passed_over = {
        f"{step}.{name}"
        for step, cases in CASES.items()
        for arguments in cases
        for name in vars(make(v2, step, arguments))
        if not name.startswith("_")
        and name not in without_meaning
        and name not in step_registry.STEPS.find(step).model_fields
    }
    assert passed_over == set()


@pytest.mark.parametrize("transform", [v2.FiveCrop(20), v2.TenCrop(20)])
def test_a_step_of_views_is_refused_with_what_to_write(transform: Any) -> None:
    with pytest.raises(gpupipe.ConfigError, match="images of one: write it as the first step of a"):
        gpupipe.from_torchvision(v2.Compose([v2.Resize(30), transform]))


def test_the_noise_of_random_erasing() -> None:
    floats = v2.ToDtype(torch.float32, scale=True)
    erasing = v2.RandomErasing(0.3, value="random")
    made = gpupipe.from_torchvision(v2.Compose([v2.CenterCrop(40), floats, erasing]))
    assert made[-1] == {"random_erasing": {"p": 0.3, "value": "random"}}


@pytest.mark.parametrize("policy", v2.AutoAugmentPolicy)
def test_policies_of_auto_augment(policy: v2.AutoAugmentPolicy) -> None:
    by_hand = build(write({"auto_augment": {"policy": policy.value}}))
    assert build(adapt(v2.AutoAugment(policy))).fingerprint == by_hand.fingerprint


@pytest.mark.parametrize("interpolation", [InterpolationMode.BICUBIC, "bicubic", 3])
def test_every_form_of_an_interpolation(interpolation: Any) -> None:
    text = adapt(v2.Resize(20, interpolation=interpolation))
    assert text == "- decode\n- resize: {size: 20, interpolation: bicubic}\n"


@pytest.mark.parametrize(
    ("transform", "step"),
    [
        (v1.ToTensor(), FLOATS),
        (v1.ConvertImageDtype(torch.float32), FLOATS),
        (v2.ConvertImageDtype(torch.float16), {"to_dtype": {"dtype": "float16", "scale": True}}),
        (v2.ToDtype(torch.float32), {"to_dtype": {"dtype": "float32"}}),
        (v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True), FLOATS),
        (v2.ToDtype({torch.Tensor: torch.float32, tv_tensors.Mask: None}, scale=True), FLOATS),
    ],
)
def test_conversions_of_dtype(transform: Any, step: dict[str, Any]) -> None:
    assert build(adapt(transform)).fingerprint == build(write(step)).fingerprint


@pytest.mark.parametrize(
    "transform",
    [
        v2.ToImage(),
        v2.PILToTensor(),
        v1.PILToTensor(),
        v2.ToPureTensor(),
        v2.ToDtype({tv_tensors.Mask: None, "others": None}),
    ],
)
def test_what_changes_only_the_type_of_the_image_needs_no_step(transform: Any) -> None:
    assert adapt(transform) == "- decode\n"


@pytest.mark.parametrize(
    ("fill", "text"),
    [
        ({tv_tensors.Image: 7, "others": 1}, "7"),
        ({"others": 1}, "1"),
        ({tv_tensors.Mask: 255, "others": 0}, "{image: 0, mask: 255}"),
        ({tv_tensors.Mask: 255, tv_tensors.Image: (1, 2, 3)}, "{image: [1, 2, 3], mask: 255}"),
    ],
    ids=["image", "others", "mask", "both"],
)
def test_a_fill_by_type(fill: dict[Any, Any], text: str) -> None:
    steps = gpupipe.from_torchvision(v2.Pad(2, fill=fill))
    assert steps == ["decode", {"pad": {"padding": 2, "fill": yaml.safe_load(text)}}]
    assert yaml.safe_load(str(steps)) == steps
