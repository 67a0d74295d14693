"""Columns of annotations: taking samples, saving in an index, and what is inconsistent."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from gpupipe.dataset import index_cache
from gpupipe.dataset.annotation_columns import (
    AnnotationColumn,
    explain_inconsistency,
    find_positions,
    offsets_of,
    take_annotations,
)
from gpupipe.dataset.index import Index, build

OFFSETS = np.array([0, 2, 2, 5], np.int64)


def columns() -> dict[str, AnnotationColumn]:
    boxes = np.arange(20, dtype=np.float32).reshape(5, 4)
    return {
        "boxes": AnnotationColumn("boxes", "image", "", boxes, OFFSETS),
        "labels": AnnotationColumn("array", "image", "boxes", np.arange(5), None),
        "points": AnnotationColumn("points", "image", "boxes", np.zeros((5, 17, 2)), None),
    }


def index_with(**changes: AnnotationColumn) -> Index:
    sizes = {"image": np.array([[4, 6], [5, 5], [1, 2]], np.int32)}
    return build(
        "/data",
        ["a.jpg", "b.jpg", "c.jpg"],
        None,
        ["cat", "dog"],
        annotations=columns() | changes,
        sizes=sizes,
    )


@pytest.mark.parametrize("rows", [[0, 1, 2], [2, 0], [1], [1, 1, 2, 2], []])
def test_taken_samples_keep_their_rows(rows: list[int]) -> None:
    taken = take_annotations(columns(), np.array(rows, np.int64))
    whole = columns()["labels"].values
    expected = [whole[OFFSETS[row] : OFFSETS[row + 1]].tolist() for row in rows]
    offsets = offsets_of(taken, "labels")
    labels = taken["labels"].values
    assert [labels[a:b].tolist() for a, b in pairwise(offsets)] == expected
    assert taken["boxes"].values[:, 0].tolist() == [4 * n for part in expected for n in part]
    assert taken["points"].values.shape == (sum(map(len, expected)), 17, 2)


def test_positions_of_repeated_samples() -> None:
    positions, offsets = find_positions(OFFSETS, np.array([2, 0, 2]))
    assert positions.tolist() == [2, 3, 4, 0, 1, 2, 3, 4]
    assert offsets.tolist() == [0, 3, 5, 8]


def test_an_index_keeps_its_annotations_in_a_file(tmp_path: Path) -> None:
    index = index_with()
    index_cache.save(index, tmp_path / "saved.idx")
    saved = index_cache.open_saved(tmp_path / "saved.idx")
    assert saved is not None
    assert saved.fingerprint == index.fingerprint
    assert not saved.has_labels
    assert saved.sizes["image"].tolist() == index.sizes["image"].tolist()
    for name, column in index.annotations.items():
        other = saved.annotations[name]
        assert (other.kind, other.of, other.rows_with) == (column.kind, column.of, column.rows_with)
        assert np.array_equal(other.values, column.values)
        assert other.values.dtype == column.values.dtype
        assert np.array_equal(offsets_of(saved.annotations, name), OFFSETS)
    part = saved.subset(np.array([2]))
    assert part.annotations["labels"].values.tolist() == [2, 3, 4]
    assert part.sizes["image"].tolist() == [[1, 2]]


def test_the_fingerprint_covers_annotations() -> None:
    labels = columns()["labels"]
    moved = replace(labels, values=labels.values[::-1].copy())
    prints = {index_with(labels=moved).fingerprint, index_with().fingerprint}
    prints.add(build("/data", ["a.jpg", "b.jpg", "c.jpg"], None, ["cat", "dog"]).fingerprint)
    assert len(prints) == 3


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("labels", {"rows_with": "nothing"}, "no rows of its own"),
        ("labels", {"rows_with": ""}, "no rows of its own"),
        ("labels", {"values": np.arange(4)}, "4 rows"),
        ("boxes", {"offsets": np.array([0, 3, 2, 5])}, "ascend"),
        ("boxes", {"offsets": np.array([0, 5])}, "ascend"),
        ("boxes", {"values": np.zeros((5, 3))}, "boxes"),
        ("points", {"values": np.zeros((5, 17, 3))}, "points"),
    ],
)
def test_inconsistent_columns_are_explained(
    name: str, changes: dict[str, object], why: str
) -> None:
    wrong = columns()
    assert explain_inconsistency(wrong, 3) == ""
    wrong[name] = replace(wrong[name], **changes)  # type: ignore[arg-type]
    assert why in explain_inconsistency(wrong, 3)


def test_a_damaged_saved_index_is_not_opened(tmp_path: Path) -> None:
    index = index_with(labels=replace(columns()["labels"], values=np.arange(4)))
    index_cache.save(index, tmp_path / "saved.idx")
    assert index_cache.open_saved(tmp_path / "saved.idx") is None
