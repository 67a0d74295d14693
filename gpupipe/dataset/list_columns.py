"""The settings of columns of lists in the tables of sources."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic
from pydantic import AfterValidator, Field

from gpupipe.dataset.spec import Spec
from gpupipe.formats.list_values import ListPlace

T = TypeVar("T")
BadBoxes = Literal["error", "drop"]
LABELS = "labels"
"""The field whose texts are names of classes."""
VISIBILITY = "visibility"
"""The field with the visibility of points."""
BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
_NUMBERS_OF_POINT = {"xy": 2, "xyv": 3}
_MAX_POINTS = 10_000
_WHOLE = (LABELS, "iscrowd")
"""The fields whose numbers are delivered as int64 by default."""


class ListColumn(pydantic.BaseModel):
    """A field with a list in each row: boxes, or what goes with each box.

    Attributes:
        column: The column with the lists. "objects.bbox" is `bbox` in the struct, or in each struct
            of the list, that the column `objects` holds.
        kind: "boxes" for a column of boxes, four numbers each. "points" for a column with `count`
            points for each box, as numbers in a row, or as a list for each point.
        format: What the numbers of a box or of a point are. xyxy: left, top, right, bottom. xywh:
            left, top, width, height. cxcywh: the center, width, height. xy: a point. xyv: a point,
            and its visibility, which the field `visibility` holds.
        normalized: Whether coordinates are fractions of the image's width and height. By default
            they are pixels.
        count: The number of points of each box.
        flip_pairs: Pairs of points that a horizontal flip swaps, such as [[0, 1]], counted from 0.
        dtype: The dtype of numbers that go with boxes: float32, or int64 for whole numbers. By
            default int64 for the fields `labels` and `iscrowd`, and float32 for others.
        with_: The field of boxes that has a box for each item of this column; `with` in the YAML.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    column: str = Field(min_length=1)
    kind: Literal["boxes", "points"] | None = None
    format: Literal["xyxy", "xywh", "cxcywh", "xy", "xyv"] | None = None
    normalized: bool = False
    count: int | None = Field(default=None, ge=1, le=_MAX_POINTS)
    flip_pairs: tuple[tuple[int, int], ...] = ()
    dtype: Literal["float32", "int64"] | None = None
    with_: str = Field(default="", alias="with")

    @pydantic.model_validator(mode="after")
    def _is_boxes_or_goes_with_them(self) -> "ListColumn":
        if self.kind == "boxes" and (self.format not in BOX_FORMATS or self.with_):
            raise ValueError("a column of boxes has a format, xyxy, xywh or cxcywh, and no 'with'")
        if self.kind == "points" and not (
            self.format in _NUMBERS_OF_POINT and self.count and self.with_
        ):
            raise ValueError(
                "a column of points has a format, xy or xyv, a 'count' of points for each box, and "
                "'with' and the name of the field of boxes"
            )
        if self.kind is None and (not self.with_ or self.format or self.normalized):
            raise ValueError(
                "a column of lists has 'kind: boxes' or 'kind: points' and a format, or 'with' and "
                "the name of the field of boxes"
            )
        if self.kind is not None and self.dtype:
            raise ValueError("a dtype is of numbers that go with boxes: boxes and points have none")
        if self.kind != "points" and (self.count is not None or self.flip_pairs):
            raise ValueError("count and flip_pairs are of columns of 'kind: points'")
        if any(not 0 <= n < (self.count or 0) for pair in self.flip_pairs for n in pair):
            pairs = list(map(list, self.flip_pairs))
            raise ValueError(f"flip_pairs is {pairs}, but the points are 0 to {self.count} - 1")
        return self

    @property
    def place(self) -> ListPlace:
        """Where the lists are, and what their items are."""
        group = _NUMBERS_OF_POINT.get(self.format or "", 0)
        width = 4 if self.kind == "boxes" else group * (self.count or 0)
        return ListPlace(self.column, width, group)

    def find_dtype(self, name: str) -> str:
        """Return the dtype of the numbers in a field of the name `name`."""
        return self.dtype or find_default_dtype(name)

    @property
    def has_visibility(self) -> bool:
        """Whether the points of the column have a visibility each."""
        return self.format == "xyv"


def find_default_dtype(name: str) -> str:
    """Return the dtype of numbers that go with boxes, in the field `name`, if none is set."""
    return "int64" if name in _WHOLE else "float32"


def split_fields(
    fields: Mapping[str, T | ListColumn],
) -> tuple[dict[str, T], dict[str, ListColumn]]:
    """Return the fields of files or arrays, and those of lists."""
    lists = {name: field for name, field in fields.items() if isinstance(field, ListColumn)}
    others = {name: field for name, field in fields.items() if not isinstance(field, ListColumn)}
    return others, lists


def check_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields. Raises ValueError if the fields of lists do not fit each other."""
    columns = split_fields(fields)[1]
    boxes = [name for name, column in columns.items() if column.kind == "boxes"]
    for name, column in columns.items():
        if column.with_ and column.with_ not in boxes:
            raise ValueError(f"{name}: 'with' is '{column.with_}', which is no field of boxes")
    seen = [name for name, column in columns.items() if column.has_visibility]
    if len(seen) > 1 or (seen and VISIBILITY in fields):
        raise ValueError(
            f"{seen[0]}: the visibility of its points is the field '{VISIBILITY}', which there is "
            "already: rename the other one, or leave it out"
        )
    if len(boxes) > 1:
        raise ValueError(f"{' and '.join(boxes)} are boxes: a source has one field of boxes")
    return fields


Fields = Annotated[dict[str, str | ListColumn], AfterValidator(check_fields)]
"""The fields of a source whose places are columns or members of a table."""


def find_label(source: Any) -> str | None:
    """Return the option `label` of a source; None if it is not set and there are lists.

    Images with boxes seldom have a class of their own.
    """
    has_lists = bool(split_fields(source.fields)[1])
    label: str | None = source.label
    return None if has_lists and "label" not in source.model_fields_set else label


def list_annotation_specs(fields: Mapping[str, Any], image: str = "") -> dict[str, Spec]:
    """Return the spec of each field of annotations.

    Args:
        fields: The fields of a source.
        image: The field of the image that the boxes are on; by default the first of `fields`.
    """
    others, columns = split_fields(fields)
    image = image or next(iter(others))
    specs = {}
    for name, column in columns.items():
        if column.kind == "boxes":
            specs[name] = Spec.of_boxes(image)
        elif column.kind == "points":
            specs[name] = Spec.of_points(image, column.with_, column.count, column.flip_pairs)
        else:
            specs[name] = Spec.of_rows(column.find_dtype(name), image, column.with_)
        if column.has_visibility:
            specs[VISIBILITY] = Spec.of_rows("int64", image, column.with_, (column.count,), name)
    return specs
