"""The steps that benchmarks/steps.py measures, and what the other libraries call them.

Plain data: the environments of AlbumentationsX and Albumentations have no gpupipe. Transforms that
draw take the same ranges in every library where their parameters allow that.
"""

from color_cases import COLOR_CASES
from geometry_cases import GEOMETRY_CASES
from step_case import Case

RENAMED = {
    name: f"{name.removesuffix('_limit')}_range"
    for name in """brightness contrast saturation hue brightness_limit contrast_limit
    hue_shift_limit sat_shift_limit val_shift_limit blur_limit sigma_limit gamma_limit alpha
    lightness scale_limit""".split()
} | {"limit": "angle_range"}
"""AlbumentationsX's names of arguments that Albumentations 2.0.8 calls otherwise."""

_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

CASES: dict[str, Case] = {
    **COLOR_CASES,
    **GEOMETRY_CASES,
    "normalize": Case(
        {"normalize": {"mean": _MEAN, "std": _STD}},
        [
            ("ToDtype", {"dtype": "float32", "scale": True}),
            ("Normalize", {"mean": _MEAN, "std": _STD}),
        ],
        [("Normalize", {"mean": tuple(_MEAN), "std": tuple(_STD)})],
    ),
    "to_dtype float32": Case(
        {"to_dtype": {"dtype": "float32", "scale": True}},
        [("ToDtype", {"dtype": "float32", "scale": True})],
        [("ToFloat", {"max_value": 255})],
    ),
    "auto_augment": Case({"auto_augment": {}}, [("AutoAugment", {})]),
    "rand_augment": Case({"rand_augment": {}}, [("RandAugment", {})]),
    "trivial_augment_wide": Case({"trivial_augment_wide": {}}, [("TrivialAugmentWide", {})]),
    "aug_mix": Case({"aug_mix": {}}, [("AugMix", {})]),
    # The policy of timm that torchvision has: the same 25 pairs of operations.
    "timm_augment original": Case(
        {"timm_augment": {"policy": "original"}},
        [("AutoAugment", {"interpolation": "bilinear", "fill": 128})],
    ),
}

LEFT_OUT = {
    "clamp_bounding_boxes": "changes annotations only",
    "clamp_keypoints": "changes annotations only",
    "convert_bounding_box_format": "changes annotations only",
    "sanitize_bounding_boxes": "changes annotations only",
    "sanitize_keypoints": "changes annotations only",
    "set_clamping_mode": "changes annotations only",
    "random_iou_crop": "needs boxes; benchmarks/detection.py measures it in the recipe ssd",
    "identity": "does nothing",
    "random_apply": "runs other steps",
    "random_choice": "runs other steps",
    "random_order": "runs other steps",
    "python": "runs the user's function; benchmarks/python_step.py measures it",
    "dali": "runs DALI's operators",
    "decode": "reads files, where the others' images are in memory; benchmarks/core.py measures it",
    "linear_transformation": "calls torch.mm, as torchvision does, and takes images of few pixels:"
    " its matrix for 512x512 would have 786,432 rows",
}
"""The steps without a case, and why. All policies of timm_augment but one are timm's alone."""
