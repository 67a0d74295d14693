import math
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import gpupipe
from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_warps import RandomAffine

WITHOUT = {"mosaic": 0, "hsv_h": 0, "hsv_s": 0, "hsv_v": 0}


def test_the_steps_are_those_of_the_defaults() -> None:
    with pytest.warns(UserWarning) as warned:
        steps = gpupipe.from_ultralytics({})
    affine = {"degrees": 0.0, "translate": [0.1, 0.1], "scale": [0.5, 1.5]}
    assert steps == [
        "decode",
        {"letterbox": {"size": 640}},
        {"random_affine": {**affine, "interpolation": "bilinear", "fill": 114}},
        {"color_jitter": {"brightness": 0.4, "saturation": 0.7, "hue": 0.015}},
        {"random_horizontal_flip": {"p": 0.5}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"sanitize_bounding_boxes": {"min_size": 2}},
    ]
    missing, colors = (str(warning.message) for warning in warned)
    assert missing == "there is no step for mosaic (1): the pipeline is without"
    assert "color_jitter stands in for hsv_h (0.015), hsv_s (0.7), hsv_v (0.4)" in colors
    assert {warning.filename for warning in warned} == {__file__}


def test_what_is_0_leaves_no_step(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    path = tmp_path / "hyp.yaml"
    path.write_text(
        "mosaic: 0.0\nhsv_h: 0\nhsv_s: 0\nhsv_v: 0.0\ntranslate: 0\nscale: 0.0\nfliplr: 0.0\n"
        "flipud: 0.2\nlr0: 0.01\nimgsz: 320\n"
    )
    assert (
        gpupipe.from_ultralytics(path)
        == gpupipe.from_ultralytics(str(path))
        == [
            "decode",
            {"letterbox": {"size": 320}},
            {"random_vertical_flip": {"p": 0.2}},
            {"to_dtype": {"dtype": "float32", "scale": True}},
            {"sanitize_bounding_boxes": {"min_size": 2}},
        ]
    )
    assert not recwarn.list


@pytest.mark.parametrize("name", ["mosaic", "mixup", "cutmix", "copy_paste", "perspective", "bgr"])
def test_what_has_no_step_is_named(name: str) -> None:
    with pytest.warns(UserWarning, match=rf"there is no step for {name} \(0.001\)"):
        gpupipe.from_ultralytics(WITHOUT | {name: 0.001})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"no\.yaml: cannot be read: No such file"):
        gpupipe.from_ultralytics(tmp_path / "no.yaml")


@pytest.mark.parametrize(
    ("degrees", "shear", "limit"), [(0, 0, 1e-9), (20, 0, 1e-9), (0, 3, 0.5), (10, 3, 3.0)]
)
def test_points_move_as_in_ultralytics(degrees: float, shear: float, limit: float) -> None:
    """By the matrix of RandomPerspective.affine_transform, T @ S @ R @ C, for the same draws.

    torchvision shears before it turns, and along y after x. The image has 200 x 200 pixels.
    """
    steps = gpupipe.from_ultralytics(WITHOUT | {"imgsz": 200, "shear": shear, "degrees": degrees})
    step: Any = RandomAffine.model_validate(steps[2]["random_affine"]).resolve(Spec.of_image(3))
    drawn = step.sample(np.random.default_rng(0).random((200, step.num_uniforms)))
    corners = np.array([[0.0, 0.0], [200.0, 0.0], [200.0, 200.0], [0.0, 200.0]])
    for n in range(200):
        p = {name: values[n] for name, values in drawn.items()}
        shift = step.shift(p, np.array([200.0, 200.0]))
        tangents = [math.tan(-math.radians(angle)) for angle in p["shear"]]
        turn = cv2.getRotationMatrix2D((0, 0), -float(p["angle"]), float(p["scale"]))[:, :2]
        matrix = np.array([[1, tangents[0]], [tangents[1], 1]]) @ turn
        expected = (corners - 100) @ matrix.T + 100 + shift
        made = (corners - 100) @ np.linalg.inv(p["linear"]).T + 100 + shift
        assert np.abs(made - expected).max() <= limit
