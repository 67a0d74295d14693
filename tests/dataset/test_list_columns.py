"""The settings of columns of lists: what fits together, and the specs of their fields."""

from typing import Any

import pydantic
import pytest

from gpupipe.dataset.list_columns import (
    ListColumn,
    check_fields,
    list_annotation_specs,
    split_fields,
)

BOXES = {"column": "o.box", "kind": "boxes", "format": "xywh"}
POINTS = {"column": "o.p", "kind": "points", "format": "xyv", "count": 3, "with": "boxes"}


def fields(**columns: Any) -> dict[str, Any]:
    return {"image": "image"} | {n: ListColumn.model_validate(c) for n, c in columns.items()}


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ({"column": "a", "kind": "boxes"}, "has a format"),
        (BOXES | {"format": "xyv"}, "xyxy, xywh or cxcywh"),
        (BOXES | {"with": "boxes"}, "no 'with'"),
        (BOXES | {"count": 3}, "'kind: points'"),
        ({"column": "a"}, "'with' and the name"),
        ({"column": "a", "with": "boxes", "flip_pairs": [[0, 1]]}, "'kind: points'"),
        (POINTS | {"format": "xywh"}, "xy or xyv"),
        (POINTS | {"count": None}, "a 'count' of points"),
        (POINTS | {"with": ""}, "'with'"),
        (POINTS | {"count": 0}, "greater than or equal to 1"),
        (POINTS | {"flip_pairs": [[0, 3]]}, r"flip_pairs is \[\[0, 3\]\]"),
    ],
)
def test_settings_that_do_not_fit_are_refused(column: dict[str, Any], reason: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=reason):
        ListColumn.model_validate(column)


def test_items_of_points_have_as_many_numbers_as_their_format_says() -> None:
    assert ListColumn.model_validate(POINTS).place == ("o.p", 9, 3)
    assert ListColumn.model_validate(POINTS | {"format": "xy"}).place == ("o.p", 6, 2)
    assert ListColumn.model_validate(BOXES).place == ("o.box", 4, 0)


def test_the_specs_of_points_and_their_visibility() -> None:
    specs = list_annotation_specs(fields(boxes=BOXES, faces=POINTS | {"flip_pairs": [[0, 2]]}))
    assert list(specs) == ["boxes", "faces", "visibility"]
    faces, seen = specs["faces"].annotation, specs["visibility"].annotation
    assert faces is not None
    assert seen is not None
    assert (specs["faces"].kind, specs["faces"].shape) == ("points", (None, 3, 2))
    assert (faces.of, faces.rows_with, faces.flip_pairs) == ("image", "boxes", ((0, 2),))
    assert (seen.rows_with, seen.visibility_of) == ("boxes", "faces")
    assert "visibility" not in list_annotation_specs(
        fields(boxes=BOXES, faces=POINTS | {"format": "xy"})
    )


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": POINTS}, "'boxes', which is no field of boxes"),
        ({"boxes": BOXES, "more": BOXES}, "one field of boxes"),
        ({"boxes": BOXES, "a": POINTS, "b": POINTS}, "a: the visibility"),
        ({"boxes": BOXES, "a": POINTS, "visibility": {"column": "v", "with": "boxes"}}, "rename"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(
    columns: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        check_fields(fields(**columns))


def test_fields_are_split() -> None:
    others, lists = split_fields(fields(boxes=BOXES))
    assert (others, list(lists)) == ({"image": "image"}, ["boxes"])
