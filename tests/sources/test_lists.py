"""Columns of lists: every source that has columns delivers the same boxes from the same rows."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpupipe
from gpupipe.dataset.annotation_columns import offsets_of
from gpupipe.dataset.index import Index
from gpupipe.dataset.source import SOURCES
from gpupipe.errors import DataError
from helpers.list_files import HEIGHT, WIDTH, WRITERS, rows, write_json_lines


def options(data: dict[str, Any], format: str = "xywh", normalized: bool = False) -> dict[str, Any]:
    prefix = "json:" if data["source"] == "webdataset" else ""
    image = {} if data["source"] == "file_list" else {"image": "image"}
    image = {"image": "png"} if data["source"] == "webdataset" else image
    boxes = {"column": f"{prefix}objects.bbox", "kind": "boxes", "format": format}
    fields = {
        "boxes": boxes | ({"normalized": True} if normalized else {}),
        "labels": {"column": f"{prefix}objects.name", "with": "boxes"},
        "score": {"column": f"{prefix}objects.score", "with": "boxes"},
    }
    return data | {"fields": image | fields}


def index_of(data: dict[str, Any]) -> Index:
    plain = {key: value for key, value in data.items() if key != "source"}
    found: Index = SOURCES.find(data["source"]).model_validate(plain).index()
    return found


@pytest.mark.parametrize("form", ["struct of lists", "list of structs"])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_source_reads_the_same_lists(kind: str, form: str, tmp_path: Path) -> None:
    index = index_of(options(WRITERS[kind](tmp_path, rows(form))))
    columns = index.annotations
    assert list(columns) == ["boxes", "labels", "score"]
    assert offsets_of(columns, "score").tolist() == [0, 2, 2, 3, 3]
    corners = [[1.5, 2, 11.5, 22], [0, 0, 64, 48], [5, 6, 12, 14]]
    assert columns["boxes"].values.tolist() == corners
    assert index.classes == ["cat", "dog"]
    assert columns["labels"].values.tolist() == [1, 0, 1]
    assert columns["score"].values.tolist() == [0.5, 0.5, 2.5]
    assert not index.has_labels
    assert len(index.faults) == 0


@pytest.mark.parametrize("form", ["struct of lists", "list of structs"])
def test_a_shard_in_which_all_lists_are_empty_has_no_boxes(form: str, tmp_path: Path) -> None:
    samples = rows(form)
    data = options(WRITERS["parquet"](tmp_path, [samples[n] for n in (0, 2, 1, 3)]))
    index = index_of(data)
    assert offsets_of(index.annotations, "boxes").tolist() == [0, 2, 3, 3, 3]
    assert index.classes == ["cat", "dog"]
    assert len(index.faults) == 0


@pytest.mark.parametrize("is_nested", [False, True])
@pytest.mark.parametrize("kind", WRITERS)
def test_points_are_flipped_with_their_boxes(kind: str, is_nested: bool, tmp_path: Path) -> None:
    samples = rows()
    for n, sample in enumerate(samples):
        points: Any = [[[n + 1.0, 2, 2], [50, 3, 1]] for _ in sample["objects"]["bbox"]]
        flat = [[*first, *second] for first, second in points]
        sample["objects"]["face"] = points if is_nested else flat
    data = options(WRITERS[kind](tmp_path, samples))
    column = data["fields"]["boxes"]["column"].replace("bbox", "face")
    face = {"column": column, "kind": "points", "format": "xyv", "count": 2, "with": "boxes"}
    data["fields"]["face"] = face | {"flip_pairs": [[0, 1]]}
    config = {"data": data, "pipeline": ["decode", {"random_horizontal_flip": {"p": 1.0}}]}
    with gpupipe.load(config, batch_size=4, shuffle=False, device="cpu") as loader:
        (batch,) = loader
    left, right = WIDTH - 1 - 50, [WIDTH - 2, WIDTH - 2, WIDTH - 4]
    assert batch["face"].values.tolist() == [[[left, 3], [x, 2]] for x in right]
    assert batch["visibility"].values.tolist() == [[1, 2]] * 3
    assert batch["face"].counts.tolist() == [2, 0, 1, 0]


FORMATS: dict[str, Callable[[Any, Any, Any, Any], list[Any]]] = {
    "xyxy": lambda left, top, width, height: [left, top, left + width, top + height],
    "xywh": lambda left, top, width, height: [left, top, width, height],
    "cxcywh": lambda left, top, width, height: [left + width / 2, top + height / 2, width, height],
}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("normalized", [False, True])
def test_batches_have_boxes_in_pixels_whatever_the_format(
    format: str, normalized: bool, tmp_path: Path
) -> None:
    samples = rows()
    sides = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT] if normalized else [1, 1, 1, 1])
    for sample in samples:
        sample["objects"]["bbox"] = [
            (np.array(FORMATS[format](*box)) / sides).tolist() for box in sample["objects"]["bbox"]
        ]
    data = options(write_json_lines(tmp_path, samples), format, normalized)
    loader = {"batch_size": 4, "shuffle": False, "device": "cpu", "engine": "dataloader"}
    resize = {"resize": {"size": [HEIGHT // 2, WIDTH // 2]}}
    with gpupipe.load({"data": data, "pipeline": ["decode", resize], "loader": loader}) as batches:
        (batch,) = batches
    half = [[0.75, 1, 5.75, 11], [0, 0, 32, 24], [2.5, 3, 6, 7]]
    assert np.allclose(batch["boxes"].values, half, atol=1e-4)
    assert batch["boxes"].counts.tolist() == [2, 0, 1, 0]
    assert batch["labels"].values.tolist() == [1, 0, 1]
    assert "label" not in batch


def _set(sample: int, key: str, value: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda samples: samples[sample]["objects"].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_set(0, "bbox", [[1.0, 2, 3, 4]]), "1 boxes, but 2 of 'labels'|2 of 'score'"),
        (_set(2, "bbox", [[1.0, 2, 3]]), r"'objects.bbox': .*(3 numbers|no list of 4)"),
        (_set(2, "bbox", [[1.0, 2, 0, 4]]), r"box 0 of 'objects.bbox': the box .* has no area"),
        (_set(2, "bbox", [[1.0, 2, float("nan"), 4]]), "is not finite"),
        (_set(2, "bbox", None), "empty is no list"),
        (_set(0, "name", ["dog", None]), "no text|empty is no number"),
    ],
)
@pytest.mark.parametrize("kind", ["jsonl", "table", "arrow"])
def test_wrong_lists_break_their_sample_alone(
    kind: str, change: Callable[[Any], None], reason: str, tmp_path: Path
) -> None:
    samples = rows()
    change(samples)
    index = index_of(options(WRITERS[kind](tmp_path, samples)))
    (row,) = index.faults.rows.tolist()
    place = {"jsonl": f"list.jsonl:{row + 1}", "table": f"list.parquet: row {row + 1}"}
    assert place.get(kind, f"arrow:row {row}") in index.faults.explain(row)
    assert re.search(reason, index.faults.explain(row))


@pytest.mark.parametrize("kind", ["jsonl", "table", "arrow", "tar"])
def test_a_column_that_is_not_there_is_named(kind: str, tmp_path: Path) -> None:
    data = options(WRITERS[kind](tmp_path, rows()))
    place = data["fields"]["labels"]["column"]
    data["fields"]["labels"]["column"] = place.replace("name", "nam")
    if kind in ("table", "arrow"):
        with pytest.raises(DataError, match=r"'objects\.nam': no 'nam' .*did you mean 'name'"):
            index_of(data)
    else:
        index = index_of(data)
        assert "no 'nam'; did you mean 'name'" in index.faults.explain(0)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"boxes": {"column": "a", "kind": "boxes"}}, "a column of boxes has a format"),
        ({"labels": {"column": "a"}}, "'kind: boxes' or 'kind: points' and a format, or 'with'"),
        ({"labels": {"column": "a", "with": "boxes"}}, "'with' is 'boxes', which is no field"),
        (
            {n: {"column": "a", "kind": "boxes", "format": "xywh"} for n in ("a", "b")},
            "a and b are boxes",
        ),
    ],
)
def test_settings_that_fit_nothing_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SOURCES.find("file_list").model_validate({"file": "a.jsonl", "fields": fields})


def test_other_lists_have_no_lists() -> None:
    fields = {"boxes": {"column": "a", "kind": "boxes", "format": "xywh"}}
    with pytest.raises(ValueError, match=r"need a \.jsonl or \.parquet"):
        SOURCES.find("file_list").model_validate({"file": "a.csv", "fields": fields})
