"""The augmentation of a file of hyperparameters, as cfg/default.yaml of Ultralytics 8.3 has it."""

from typing import Annotated, Any

import pydantic
from pydantic import Field

from gpupipe.errors import ConfigError, Problem, nearest
from gpupipe.schema.document import Document
from gpupipe.schema.field_types import NUMBER, NotNegative, Probability, Side
from gpupipe.schema.validation_errors import to_problems

_Gain = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False), NUMBER]
_OF_TRAINING = frozenset(
    "close_mosaic copy_paste_mode crop_fraction multi_scale scales model mode imgs".split()
)
"""Keys of other parts of Ultralytics that are like those of augmentation."""


class Hyperparameters(pydantic.BaseModel):
    """What changes the images of detection, with Ultralytics' defaults.

    Attributes:
        imgsz: The side of the square into which an image is fitted, in pixels.
        degrees: The largest angle.
        translate: The largest shift, as a share of the side.
        scale: The factor of size is from 1 - scale to 1 + scale.
        shear: The largest shear along x and y, in degrees.
        flipud: The probability of a vertical flip.
        fliplr: The probability of a horizontal flip.
        hsv_h: The largest change of the hue.
        hsv_s: The saturation is multiplied by 1 - hsv_s to 1 + hsv_s.
        hsv_v: The value is multiplied by 1 - hsv_v to 1 + hsv_v.
        perspective: The largest perspective coefficient.
        bgr: The probability that red and blue are exchanged.
        mosaic: The probability of a mosaic of four images.
        mixup: The probability that two images are blended.
        cutmix: The probability that a part of another image is pasted.
        copy_paste: The probability that objects of another image are pasted.
        paste_in: The same in YOLOv7.
    """

    model_config = pydantic.ConfigDict(frozen=True)

    imgsz: Side = 640
    degrees: Annotated[float, Field(ge=0, le=180), NUMBER] = 0.0
    translate: Probability = 0.1
    scale: _Gain = 0.5
    shear: Annotated[float, Field(ge=0, lt=90), NUMBER] = 0.0
    flipud: Probability = 0.0
    fliplr: Probability = 0.5
    hsv_h: Annotated[float, Field(ge=0, le=0.5), NUMBER] = 0.015
    hsv_s: Probability = 0.7
    hsv_v: Probability = 0.4
    perspective: NotNegative = 0.0
    bgr: Probability = 0.0
    mosaic: Probability = 1.0
    mixup: Probability = 0.0
    cutmix: Probability = 0.0
    copy_paste: Probability = 0.0
    paste_in: Probability = 0.0


def read_hyperparameters(document: Document) -> Hyperparameters:
    """Return the hyperparameters of a document; keys of training and losses are left out.

    Raises:
        ConfigError: A value is wrong, a key is misspelt, or the file is for another task.
    """
    data: Any = document.data if document.data is not None else {}
    if not isinstance(data, dict):
        what = "this is no mapping of hyperparameters, such as {degrees: 5, fliplr: 0.5}"
        raise ConfigError.at(document.where(()), what)
    known = Hyperparameters.model_fields.keys()
    problems = [
        Problem(document.where((key,), of_key=True), f"unknown key '{key}'; did you mean '{near}'?")
        for key in data
        if key not in known | _OF_TRAINING and (near := nearest(str(key), known))
    ]
    if data.get("task") not in (None, "detect", "pose"):
        advice = "that of boxes and points alone is converted: leave the key out, or write 'detect'"
        problems.append(Problem(document.where(("task",)), f"task is '{data['task']}': {advice}"))
    own = {key: value for key, value in data.items() if key in known}
    try:
        hyperparameters = Hyperparameters.model_validate(own)
    except pydantic.ValidationError as e:
        raise ConfigError(problems + to_problems(e, Hyperparameters, document)) from None
    if problems:
        raise ConfigError(problems)
    return hyperparameters
