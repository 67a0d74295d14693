"""Steps that change boxes and points alone: they drop, clamp or convert them.

They work on the annotations of the image that the step is on, and cost no time on pixels.
"""

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from gpupipe.pipeline.annotations import Annotations, BoxFormat
from gpupipe.pipeline.spec_checks import check_plane
from gpupipe.pipeline.step import Params, Primitives, Spec, Step
from gpupipe.schema.field_types import NUMBER

_AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False), NUMBER]


class AnnotationStep(Step):
    """The base of steps that change boxes and points alone. Subclasses define `change`."""

    def infer_spec(self, input_spec: Spec) -> Spec:
        return check_plane(input_spec)

    def change(self, image: Primitives, annotations: Annotations, size: NDArray[Any]) -> None:
        """Change the annotations of the samples in `image.present`.

        Args:
            image: The samples.
            annotations: Their boxes and points.
            size: [height, width] of each image in pixels, float64 (B, 2).
        """
        raise NotImplementedError

    def lower(self, image: Primitives, p: Params) -> None:
        if image.annotations is not None:
            size = np.broadcast_to(image.size, (len(image.present), 2))
            self.change(image, image.annotations, size)

    def torch(self, image: Any, p: Params) -> Any:
        return image


class SanitizeBoundingBoxes(AnnotationStep):
    """Drop invalid boxes, as torchvision.transforms.v2.SanitizeBoundingBoxes.

    A box is dropped if a side is below `min_size`, its area is below `min_area`, or a corner is
    outside the image. The fields that go with the boxes, such as labels, lose the same rows.

    Attributes:
        min_size: The smallest side of a box in pixels, at least 1. The default is 1.
        min_area: The smallest area of a box in square pixels, at least 1. The default is 1.
    """

    min_size: _AtLeastOne = 1.0
    min_area: _AtLeastOne = 1.0

    needs = frozenset({"boxes"})
    drops_empty_boxes = True

    def change(self, image: Primitives, annotations: Annotations, size: NDArray[Any]) -> None:
        for name in annotations.names("boxes"):
            boxes, samples = annotations.values(name), annotations.samples(name)
            sides = boxes[:, 2:] - boxes[:, :2]
            is_valid = (sides >= self.min_size).all(-1) & (sides.prod(-1) >= self.min_area)
            is_valid &= (boxes >= 0).all(-1)
            is_valid &= (boxes <= np.tile(size[samples, ::-1], 2)).all(-1)
            annotations.keep(name, is_valid | ~image.present[samples])


class SanitizeKeyPoints(AnnotationStep):
    """Drop rows with a point outside the image, as torchvision.transforms.v2.SanitizeKeyPoints.

    A row is dropped if one of its points is outside, as in torchvision: a pose is whole or dropped.
    Points that the data set has not labelled (visibility 0) do not count. The fields that go with
    the points lose the same rows; boxes, too, if the points go with boxes.
    """

    needs = frozenset({"points"})

    def change(self, image: Primitives, annotations: Annotations, size: NDArray[Any]) -> None:
        for name in annotations.names("points"):
            points, samples = annotations.values(name), annotations.samples(name)
            width_height = size[samples, None, ::-1]
            is_inside = ((points >= 0) & (points < width_height)).all(-1)
            if (visibility := annotations.visibility(name)) is not None:
                is_inside |= annotations.stored(visibility) == 0
            annotations.keep(name, is_inside.all(-1) | ~image.present[samples])


class ClampBoundingBoxes(AnnotationStep):
    """Clamp boxes to the image, as torchvision.transforms.v2.ClampBoundingBoxes.

    Attributes:
        clamping_mode: "soft" and "hard" clamp, and differ for rotated boxes alone, of which there
            are none. null leaves the boxes alone. "auto", the default, clamps unless
            set_clamping_mode says null.
    """

    clamping_mode: Literal["auto", "soft", "hard"] | None = "auto"

    needs = frozenset({"boxes"})

    def change(self, image: Primitives, annotations: Annotations, size: NDArray[Any]) -> None:
        clamps = image.present & (self.clamping_mode is not None)
        if self.clamping_mode == "auto":
            clamps &= annotations.clamps
        for name in annotations.names("boxes"):
            boxes, samples = annotations.values(name), annotations.samples(name)
            clamped = np.clip(boxes, 0.0, np.tile(size[samples, ::-1], 2))
            annotations.replace(name, np.where(clamps[samples, None], clamped, boxes))


class ClampKeyPoints(AnnotationStep):
    """Clamp points to the image, as torchvision.transforms.v2.ClampKeyPoints.

    x is clamped to 0 .. W - 1, and y to 0 .. H - 1. The visibility of a point that had left the
    image stays 0.
    """

    needs = frozenset({"points"})

    def change(self, image: Primitives, annotations: Annotations, size: NDArray[Any]) -> None:
        for name in annotations.names("points"):
            points, samples = annotations.values(name), annotations.samples(name)
            clamped = np.clip(points, 0.0, size[samples, None, ::-1] - 1.0)
            is_present = image.present[samples, None, None]
            annotations.replace(name, np.where(is_present, clamped, points))


class SetClampingMode(AnnotationStep):
    """Set whether later steps clamp boxes, as torchvision.transforms.v2.SetClampingMode.

    Attributes:
        clamping_mode: "soft" or "hard": steps clamp boxes to the image that they make, as they do
            by default. null: they do not.
    """

    clamping_mode: Literal["soft", "hard"] | None

    example = {"clamping_mode": None}
    needs = frozenset({"boxes"})

    def change(self, image: Primitives, annotations: Annotations, size: NDArray[Any]) -> None:
        annotations.clamps[image.present] = self.clamping_mode is not None


class ConvertBoundingBoxFormat(AnnotationStep):
    """Set the format of the boxes, as torchvision.transforms.v2.ConvertBoundingBoxFormat.

    Steps after it still work on all boxes: the format is that of the batch. So the step must not
    stand in a container.

    Attributes:
        format: "XYXY" for [left, top, right, bottom], the default of boxes. "XYWH" is [left, top,
            width, height], and "CXCYWH" [center x, center y, width, height], all in pixels.
    """

    format: Annotated[BoxFormat, BeforeValidator(lambda v: v.upper() if isinstance(v, str) else v)]

    example = {"format": "CXCYWH"}
    needs = frozenset({"boxes"})
    can_be_nested: ClassVar[bool] = False

    def change(self, image: Primitives, annotations: Annotations, size: NDArray[Any]) -> None:
        annotations.format = self.format
