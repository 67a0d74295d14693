"""The cases of benchmarks/steps.py that move pixels, and those that erase parts of an image."""

from typing import Any

from step_case import Call, Case

_SHARES = [0.04, 0.04]
_HOLES = {
    "num_holes_range": (1, 2),
    "hole_height_range": (0.1, 0.2),
    "hole_width_range": (0.1, 0.2),
}


def _crop_and_pad(side: int) -> Call:
    """Return Albumentations' RandomCrop, which pads smaller images on the right and below."""
    padding = {"pad_if_needed": True, "pad_position": "top_left"}
    return "RandomCrop", {"height": side, "width": side, **padding}


def _center(side: int) -> dict[str, Any]:
    return {"center_crop": {"size": side}}


GEOMETRY_CASES: dict[str, Case] = {
    "elastic_transform": Case(
        {"elastic_transform": {}},
        [("ElasticTransform", {})],
        [("ElasticTransform", {"alpha": 50, "sigma": 5})],
        albumentationsx=(),
    ),
    "random_horizontal_flip": Case(
        {"random_horizontal_flip": {"p": 1}},
        [("RandomHorizontalFlip", {"p": 1})],
        [("HorizontalFlip", {})],
    ),
    "random_vertical_flip": Case(
        {"random_vertical_flip": {"p": 1}},
        [("RandomVerticalFlip", {"p": 1})],
        [("VerticalFlip", {})],
    ),
    "pad 10": Case(
        {"pad": {"padding": 10}}, [("Pad", {"padding": 10})], [("Pad", {"padding": 10})], side=532
    ),
    "pad 10, reflect": Case(
        {"pad": {"padding": 10, "padding_mode": "reflect"}},
        [("Pad", {"padding": 10, "padding_mode": "reflect"})],
        [("Pad", {"padding": 10, "border_mode": 4})],
        side=532,
    ),
    "random_crop 224": Case(
        {"random_crop": {"size": 224}},
        [("RandomCrop", {"size": 224})],
        [("RandomCrop", {"height": 224, "width": 224})],
        side=224,
    ),
    "center_crop 224": Case(
        {"center_crop": {"size": 224}},
        [("CenterCrop", {"size": 224})],
        [("CenterCrop", {"height": 224, "width": 224})],
        side=224,
    ),
    "random_crop 512, padding 16": Case(
        {"random_crop": {"size": 512, "padding": 16}},
        [("RandomCrop", {"size": 512, "padding": 16})],
        [[("Pad", {"padding": 16}), ("RandomCrop", {"height": 512, "width": 512})]],
    ),
    "five_crop 224": Case(
        {"five_crop": {"size": 224}}, [("FiveCrop", {"size": 224})], side=224, views=5
    ),
    "ten_crop 224": Case(
        {"ten_crop": {"size": 224}}, [("TenCrop", {"size": 224})], side=224, views=10
    ),
    "fixed_size_crop 224": Case(
        {"fixed_size_crop": {"size": 224}},
        [("RandomCrop", {"size": 224})],
        [("RandomCrop", {"height": 224, "width": 224})],
        side=224,
    ),
    "fixed_size_crop 640": Case(
        {"fixed_size_crop": {"size": 640}},
        [("Pad", {"padding": [0, 0, 128, 128]})],
        [
            ("Pad", {"padding": (0, 0, 128, 128)}),
            ("PadIfNeeded", {"min_height": 640, "min_width": 640, "position": "top_left"}),
            _crop_and_pad(640),
        ],
        side=640,
    ),
    "random_size_crop 384": Case(
        {"random_size_crop": {"min_size": 384, "max_size": 384}},
        [("RandomCrop", {"size": 384})],
        [("RandomCrop", {"height": 384, "width": 384})],
        side=384,
        then=[_center(384)],
    ),
    "random_zoom_out 640": Case(
        {"random_zoom_out": {"side_range": [1.25, 1.25], "p": 1}},
        [("RandomZoomOut", {"side_range": (1.25, 1.25), "p": 1})],
        [("PadIfNeeded", {"min_height": 640, "min_width": 640, "position": "random"})],
        side=640,
        then=[_center(640)],
    ),
    "letterbox 480x640": Case(
        {"letterbox": {"size": [480, 640]}},
        [
            ("Resize", {"size": (480, 480), "antialias": False}),
            ("Pad", {"padding": [80, 0], "fill": 114}),
        ],
        [
            [
                ("LongestMaxSize", {"max_size_hw": (480, 640)}),
                ("PadIfNeeded", {"min_height": 480, "min_width": 640, "fill": 114}),
            ]
        ],
        [("LetterBox", {"size": (480, 640), "fill": 114})],
        side=(480, 640),
    ),
    "resize 256": Case(
        {"resize": {"size": [256, 256]}},
        [("Resize", {"size": (256, 256)})],
        [("Resize", {"height": 256, "width": 256})],
        side=256,
    ),
    "resize 256, center_crop 224": Case(
        {"resize": {"size": 256}},
        [("Resize", {"size": 256}), ("CenterCrop", {"size": 224})],
        [
            [
                ("SmallestMaxSize", {"max_size": 256}),
                ("CenterCrop", {"height": 224, "width": 224}),
            ]
        ],
        side=224,
        then=[_center(224)],
    ),
    "random_resize 256": Case(
        {"random_resize": {"min_size": 256, "max_size": 257}},
        [("RandomResize", {"min_size": 256, "max_size": 257})],
        [("SmallestMaxSize", {"max_size": 256})],
        side=256,
        then=[_center(256)],
    ),
    "random_shortest_size 384": Case(
        {"random_shortest_size": {"min_size": 384, "max_size": 640}},
        [("RandomShortestSize", {"min_size": 384, "max_size": 640})],
        [("SmallestMaxSize", {"max_size": [384]})],
        side=384,
        then=[_center(384)],
    ),
    "scale_jitter 640": Case(
        {"scale_jitter": {"target_size": [512, 512], "scale_range": [1.25, 1.25]}},
        [("ScaleJitter", {"target_size": (512, 512), "scale_range": (1.25, 1.25)})],
        [("RandomScale", {"scale_limit": (0.25, 0.25)})],
        side=640,
        then=[_center(640)],
    ),
    "scale_jitter, fixed_size_crop 512": Case(
        {"scale_jitter": {"target_size": [512, 512], "scale_range": [0.1, 2.0]}},
        [
            ("ScaleJitter", {"target_size": (512, 512), "scale_range": (0.1, 2.0)}),
            ("RandomCrop", {"size": 512, "pad_if_needed": True}),
        ],
        [[("RandomScale", {"scale_limit": (-0.9, 1.0)}), _crop_and_pad(512)]],
        then=[{"fixed_size_crop": {"size": 512}}],
    ),
    "random_resized_crop 224": Case(
        {"random_resized_crop": {"size": 224}},
        [("RandomResizedCrop", {"size": 224})],
        [("RandomResizedCrop", {"size": (224, 224)})],
        side=224,
    ),
    "random_rotation": Case(
        {"random_rotation": {"degrees": 45, "interpolation": "bilinear"}},
        [("RandomRotation", {"degrees": 45, "interpolation": "bilinear"})],
        [("Rotate", {"limit": (-45, 45)})],
    ),
    "random_affine": Case(
        {
            "random_affine": {
                "degrees": 25,
                "translate": _SHARES,
                "scale": [0.8, 1.2],
                "shear": 10,
                "interpolation": "bilinear",
            }
        },
        [
            (
                "RandomAffine",
                {
                    "degrees": 25,
                    "translate": _SHARES,
                    "scale": [0.8, 1.2],
                    "shear": 10,
                    "interpolation": "bilinear",
                },
            )
        ],
        [
            (
                "Affine",
                {
                    "rotate": (-25, 25),
                    "translate_percent": (-0.04, 0.04),
                    "scale": (0.8, 1.2),
                    "shear": (-10, 10),
                },
            )
        ],
    ),
    "random_perspective": Case(
        {"random_perspective": {"distortion_scale": 0.2, "p": 1}},
        [("RandomPerspective", {"distortion_scale": 0.2, "p": 1})],
        [("Perspective", {"scale": (0.05, 0.1)})],
    ),
    "random_erasing": Case(
        {"random_erasing": {"p": 1}}, [("RandomErasing", {"p": 1})], [("Erasing", {})]
    ),
    # Normal numbers; Albumentations draws uniform ones, before or after the conversion to floats.
    "random_erasing random": Case(
        {"random_erasing": {"p": 1, "value": "random"}},
        [
            ("ToDtype", {"dtype": "float32", "scale": True}),
            ("RandomErasing", {"p": 1, "value": "random"}),
        ],
        [
            [("ToFloat", {"max_value": 255}), ("Erasing", {"fill": "random"})],
            [("Erasing", {"fill": "random"}), ("ToFloat", {"max_value": 255})],
        ],
    ),
    "coarse_dropout": Case(
        {"coarse_dropout": {"p": 1}},
        albumentations=[("CoarseDropout", {**_HOLES, "fill": 0})],
    ),
    "random_rotate_90": Case(
        {"random_rotate_90": {"p": 1}}, albumentations=[("RandomRotate90", {})]
    ),
    "transpose": Case({"transpose": {"p": 1}}, albumentations=[("Transpose", {})]),
}
