"""Every step, with parameters that lead to each operator it may use, on a small image of any
dtype.
"""

from pathlib import Path
from typing import Any

from PIL import Image

from gpupipe.augment.color_step import RandomColorStep
from gpupipe.formats.npy import DTYPES
from gpupipe.pipeline import step_registry
from helpers.cut_jpegs import pixels

SIZE = (24, 32)
FEW_PIXELS = (2, 3)
COLORS: dict[str, list[dict[str, Any]]] = {
    "color_jitter": [
        {},
        {"brightness": 0.4},
        {"contrast": 0.4},
        {"saturation": 0.4},
        {"hue": 0.1},
        {"brightness": 0.2, "contrast": [0.8, 1.3], "saturation": 0.2, "hue": [0.0, 0.1]},
    ],
    "gaussian_blur": [{"kernel_size": 5}],
    "gaussian_noise": [{}, {"mean": 0.1, "sigma": 0.2}],
    "jpeg": [{"quality": [50, 90]}],
    "random_channel_permutation": [{}],
    "random_grayscale": [{"p": 1}],
    "random_photometric_distort": [{"p": 1}],
    "random_posterize": [{"bits": 3, "p": 1}],
    "random_solarize": [{"threshold": 0.5, "p": 1}, {"threshold": 128, "p": 1}],
    "rgb": [{}],
}
"""Steps that take colours from 0 to 1, or levels."""
for _name in sorted(step_registry.STEPS.builtin_names - COLORS.keys()):
    _step = step_registry.STEPS.find(_name)
    if issubclass(_step, RandomColorStep):
        COLORS[_name] = [{**_step.example, "p": 1}]
POLICIES: dict[str, list[dict[str, Any]]] = {
    "auto_augment": [{"policy": policy} for policy in ("imagenet", "cifar10", "svhn")],
    "rand_augment": [{}, {"num_ops": 1, "interpolation": "bilinear", "fill": 1}],
    "trivial_augment_wide": [{}],
    "aug_mix": [{}],
    "timm_augment": [
        {"policy": policy} for policy in ("rand-m7-mstd0.5-inc1", "v0", "3a", "augmix-m5-w4")
    ],
}
"""Steps that draw operations."""
NEED_ANNOTATIONS = frozenset(
    name
    for name in step_registry.STEPS.builtin_names
    if isinstance(needs := step_registry.STEPS.find(name).needs, frozenset) and needs
)
"""Steps that images without boxes or points refuse. They are not among STEPS."""
STEPS: dict[str, list[dict[str, Any]]] = {
    "resize": [{"size": [12, 10], "interpolation": i} for i in ("nearest", "bilinear", "bicubic")]
    + [{"size": 12, "antialias": False}],
    "center_crop": [{"size": 12}, {"size": 40}],
    "five_crop": [{"size": 12, "crop": n} for n in range(5)],
    "ten_crop": [{"size": 12, "crop": 6}, {"size": 12, "crop": 7, "vertical_flip": True}],
    "random_crop": [
        {"size": 12},
        {"size": 26, "padding": 4, "fill": 1},
        {"size": 26, "padding": 4, "padding_mode": "reflect"},
    ],
    "fixed_size_crop": [{"size": 12}, {"size": [40, 28], "fill": 1}],
    "random_size_crop": [{"min_size": 12, "max_size": 28}],
    "letterbox": [
        {"size": [30, 20], "interpolation": "nearest"},
        {"size": 40, "fill": 1, "scaleup": False, "center": False},
    ],
    "random_resized_crop": [{"size": 12}, {"size": 12, "interpolation": "nearest"}],
    "random_horizontal_flip": [{"p": 1}],
    "random_vertical_flip": [{"p": 1}],
    "transpose": [{"p": 1}, {"p": 0.5}],
    "random_rotate_90": [{"p": 1}],
    "coarse_dropout": [{"p": 1, "num_holes_range": [2, 3], "hole_height_range": [3, 9], "fill": 1}],
    "random_affine": [{"degrees": 20}, {"degrees": 20, "interpolation": "bilinear", "fill": 1}],
    "random_rotation": [
        {"degrees": 20},
        {"degrees": 20, "interpolation": "bilinear", "expand": True},
    ],
    "pad": [
        {"padding": 2},
        *({"padding": 2, "padding_mode": m} for m in ("edge", "reflect", "symmetric")),
    ],
    "identity": [{}],
    "random_perspective": [{"p": 1}, {"p": 1, "interpolation": "nearest", "fill": 1}],
    "elastic_transform": [{"sigma": 2}, {"sigma": 0, "interpolation": "nearest", "fill": 1}],
    "linear_transformation": [
        {
            "transformation_matrix": [[0.1 * (n + 2 * m) for m in range(18)] for n in range(18)],
            "mean_vector": [10.0 * n for n in range(18)],
        }
    ],
    "python": [{"call": "torch:flip", "args": {"dims": [-1]}}],
    "random_zoom_out": [{"p": 1, "side_range": [1, 1.5], "fill": 1}],
    "random_erasing": [{"p": 1, "value": 1}, {"p": 1, "value": "random"}],
    "scale_jitter": [{"target_size": [24, 20], "scale_range": [0.5, 1.5]}],
    "random_resize": [
        {"min_size": 10, "max_size": 16, "interpolation": i}
        for i in ("nearest", "bilinear", "bicubic")
    ],
    "random_shortest_size": [{"min_size": [10, 12], "max_size": 30}],
    "random_apply": [{"p": 1, "transforms": ["random_vertical_flip"]}],
    "random_choice": [{"transforms": [{"random_vertical_flip": {"p": 1}}, "identity"]}],
    "random_order": [{"transforms": [{"random_vertical_flip": {"p": 1}}, {"pad": {"padding": 2}}]}],
    "grayscale": [{}, {"num_output_channels": 3}],
    **COLORS,
    **POLICIES,
    "normalize": [{"mean": 0.1, "std": 0.5}],
    "to_dtype": [{"dtype": dtype, "scale": scale} for dtype in DTYPES for scale in (False, True)],
}
LINEAR = {"linear_transformation": STEPS["linear_transformation"][0]}
"""It needs images of FEW_PIXELS, and calls torch on the CPU."""
ON_CPU = (LINEAR, {"python": STEPS["python"][0]})
"""Steps that call torch on the CPU."""
CASES = [{name: parameters} for name, every in STEPS.items() for parameters in every]


def photograph(folder: Path) -> dict[str, Any]:
    """One image file without loss, as the YAML's `data`."""
    (folder / "one").mkdir()
    Image.fromarray(pixels(*SIZE)).save(folder / "one" / "1.png")
    return {"source": "folder", "root": str(folder)}


def of_image(dtype: str, scale: bool = False, case: dict[str, Any] | None = None) -> list[Any]:
    """Steps that make an image file pixels of a dtype; few, if the step `case` needs that."""
    crop = [{"center_crop": {"size": list(FEW_PIXELS)}}] if case == LINEAR else []
    return ["decode", *crop, {"to_dtype": {"dtype": dtype, "scale": scale}}]
