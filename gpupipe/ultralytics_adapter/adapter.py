"""from_ultralytics() turns Ultralytics' hyperparameters into the steps of a pipeline."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpupipe.config.step_list import StepList
from gpupipe.dataset.spec import Spec
from gpupipe.errors import warn
from gpupipe.pipeline.build import build_pipeline
from gpupipe.schema.document import Document
from gpupipe.schema.yaml_files import read
from gpupipe.ultralytics_adapter.hyperparameters import Hyperparameters, read_hyperparameters

_WITHOUT_STEP = ("mosaic", "mixup", "cutmix", "copy_paste", "paste_in", "perspective", "bgr")
_MIN_SIDE = 2
"""The smallest side of a box that Ultralytics keeps, in pixels."""
_FILL = 114
"""The gray around images, as in Ultralytics."""


def from_ultralytics(hyp: str | Path | Mapping[str, Any]) -> StepList:
    """Return the steps of Ultralytics' hyperparameters for detection and pose.

    They are those of v8_transforms() in ultralytics/data/augment.py: letterbox, one affine map, the
    colours, two flips; then values from 0 to 1, and the boxes that are too small are dropped. What
    the file leaves out has Ultralytics' default. Keys of training and losses are ignored.

    A warning names, in one line, what is not 0 and has no step: mosaic, mixup, cutmix, copy_paste,
    paste_in, perspective and bgr. It also names hsv_h, hsv_s and hsv_v, in whose place color_jitter
    stands. docs/tutorials/from_ultralytics.md says what differs.

    Args:
        hyp: The path of the YAML file, such as "hyp.yaml", or its keys and values.

    Returns:
        The steps. load() takes them as `pipeline=`, and print() shows their YAML.

    Raises:
        ConfigError: If the file cannot be read, or has a wrong value or a misspelt key. The message
            lists all mistakes, each with its line.

    Examples:
        >>> print(gpupipe.from_ultralytics({"imgsz": 320, "hsv_h": 0, "hsv_s": 0, "hsv_v": 0}))
        - decode
        - letterbox: {size: 320}
        - random_affine:
            degrees: 0.0
            translate: [0.1, 0.1]
            scale: [0.5, 1.5]
            interpolation: bilinear
            fill: 114
        - random_horizontal_flip: {p: 0.5}
        - to_dtype: {dtype: float32, scale: true}
        - sanitize_bounding_boxes: {min_size: 2}
    """
    if isinstance(hyp, Mapping):
        document = Document("from_ultralytics", dict(hyp))
    else:
        document = read(Path(hyp))
    hyperparameters = read_hyperparameters(document)
    steps = _list_steps(hyperparameters)
    build_pipeline(
        "from_ultralytics",
        Document("from_ultralytics", steps),
        annotations={"boxes": Spec.of_boxes()},
    )
    if missing := _name(hyperparameters, _WITHOUT_STEP):
        warn(f"there is no step for {missing}: the pipeline is without", UserWarning)
    if colors := _name(hyperparameters, ("hsv_h", "hsv_s", "hsv_v")):
        warn(
            f"color_jitter stands in for {colors}: it turns the hue, mixes with gray, and "
            "multiplies all channels (docs/tutorials/from_ultralytics.md)",
            UserWarning,
        )
    return StepList(steps)


def _list_steps(h: Hyperparameters) -> list[Any]:
    steps: list[Any] = ["decode", {"letterbox": {"size": h.imgsz}}]
    affine: dict[str, Any] = {"degrees": h.degrees}
    if h.translate:
        affine["translate"] = [h.translate, h.translate]
    if h.scale:
        affine["scale"] = [1.0 - h.scale, 1.0 + h.scale]
    if h.shear:
        affine["shear"] = [-h.shear, h.shear, -h.shear, h.shear]
    if affine != {"degrees": 0.0}:
        steps.append({"random_affine": affine | {"interpolation": "bilinear", "fill": _FILL}})
    factors = {"brightness": h.hsv_v, "saturation": h.hsv_s, "hue": h.hsv_h}
    if jitter := {name: factor for name, factor in factors.items() if factor}:
        steps.append({"color_jitter": jitter})
    flips = {"random_vertical_flip": h.flipud, "random_horizontal_flip": h.fliplr}
    steps += [{name: {"p": p}} for name, p in flips.items() if p]
    steps.append({"to_dtype": {"dtype": "float32", "scale": True}})
    return [*steps, {"sanitize_bounding_boxes": {"min_size": _MIN_SIDE}}]


def _name(hyperparameters: Hyperparameters, names: tuple[str, ...]) -> str:
    """Return the names and values of those that are not 0, such as "mosaic (1)"."""
    values = {name: getattr(hyperparameters, name) for name in names}
    return ", ".join(f"{name} ({value:g})" for name, value in values.items() if value)
