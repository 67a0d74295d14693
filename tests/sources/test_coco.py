"""The source coco: the index that it builds, what its options do, and what it refuses."""

import json
import os
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.annotation_columns import offsets_of
from gpupipe.dataset.index import Index
from gpupipe.errors import DataError
from gpupipe.sources.coco import Coco
from helpers.coco_files import CATEGORIES, document, write

Change = Callable[[dict[str, Any]], Any]


def index_of(folder: Path, content: dict[str, Any], **options: Any) -> Index:
    file = write(folder, content)
    return Coco(root=folder / "images", annotations=file, **options).index()


def rows(index: Index, field: str) -> list[list[Any]]:
    """The rows of each sample."""
    values, offsets = index.annotations[field].values.tolist(), offsets_of(index.annotations, field)
    return [values[a:b] for a, b in pairwise(offsets)]


def expected(content: dict[str, Any], get: Callable[[dict[str, Any]], Any]) -> list[list[Any]]:
    return [
        [get(a) for a in content["annotations"] if a["image_id"] == image["id"]]
        for image in content["images"]
    ]


def test_every_annotation_is_with_its_image(tmp_path: Path) -> None:
    content = document(20)
    content["annotations"].sort(key=lambda a: a["bbox"])  # in no order of images
    index = index_of(tmp_path, content, crowd="keep")
    labels = {number: n for n, number in enumerate(sorted(CATEGORIES))}
    assert rows(index, "labels") == expected(content, lambda a: labels[a["category_id"]])
    assert rows(index, "area") == expected(content, lambda a: a["area"])
    assert rows(index, "iscrowd") == expected(content, lambda a: bool(a["iscrowd"]))
    corners = expected(content, lambda a: np.add(a["bbox"], [0, 0, *a["bbox"][:2]]))
    assert rows(index, "boxes") == [[c.tolist() for c in image] for image in corners]
    assert index.classes == [CATEGORIES[number] for number in sorted(CATEGORIES)]
    assert index.extra["category_ids"] == sorted(CATEGORIES)
    assert index.values["image_id"].tolist() == [i["id"] for i in content["images"]]
    sizes = [[i["height"], i["width"]] for i in content["images"]]
    assert index.sizes["image"].tolist() == sizes
    assert [index.names[n] for n in range(20)] == [i["file_name"] for i in content["images"]]
    assert index.read(3)[:2].tolist() == [0xFF, 0xD8]
    assert not index.has_labels


def test_options_choose_labels_crowds_and_images(tmp_path: Path) -> None:
    content = document(20)
    assert sum(a["iscrowd"] for a in content["annotations"])
    plain = [a for a in content["annotations"] if not a["iscrowd"]]
    index = index_of(tmp_path, content, classes="original")
    kept = content | {"annotations": plain}
    assert rows(index, "labels") == expected(kept, lambda a: a["category_id"])
    assert [index.classes[n] for n in CATEGORIES] == list(CATEGORIES.values())
    assert len(index) == 20
    fewer = index_of(tmp_path, content, empty="drop")
    with_any = [
        n
        for n, image in enumerate(content["images"])
        if any(a["image_id"] == image["id"] for a in plain)
    ]
    assert [fewer.names[n] for n in range(len(fewer))] == [index.names[n] for n in with_any]
    assert fewer.extra["category_ids"] == index.extra["category_ids"]
    every = [image["id"] for image in content["images"]]
    assert fewer.values["image_id"].tolist() == [every[n] for n in with_any]


def test_keypoints_and_their_visibility(tmp_path: Path) -> None:
    content = document(9, points=3)
    del content["annotations"][2]["keypoints"]
    options = {"keypoints": True, "flip_pairs": [[0, 1]], "crowd": "keep"}
    index = index_of(tmp_path, content, **options)
    assert index.annotations["keypoints"].values.shape == (len(content["annotations"]), 3, 2)
    three = expected(content, lambda a: a.get("keypoints", [0] * 9))
    assert rows(index, "visibility") == [[p[2::3] for p in image] for image in three]
    points = rows(index, "keypoints")
    assert [[list(chain.from_iterable(p)) for p in image] for image in points] == [
        [[v for n, v in enumerate(p) if n % 3 < 2] for p in image] for image in three
    ]
    assert index.extra["keypoint_names"] == ["point 0", "point 1", "point 2"]
    assert index.extra["skeleton"] == [[0, 1]]
    specs = Coco(root=tmp_path, annotations=tmp_path / "x.json", **options).annotation_specs()
    assert list(specs) == list(index.annotations)
    assert specs["keypoints"].annotation is not None
    assert specs["keypoints"].annotation.flip_pairs == ((0, 1),)
    with pytest.raises(DataError, match=r"3 keypoints, and not the 17.*data\.flip_pairs"):
        index_of(tmp_path, content, keypoints=True)
    with pytest.raises(DataError, match=r"flip_pairs is \[\[0, 3\]\]"):
        index_of(tmp_path, content, keypoints=True, flip_pairs=[[0, 3]])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a["bbox"].__setitem__(2, 0), "has no area"),
        (lambda a: a["bbox"].__setitem__(0, 95.0), "lies outside of its image"),
        (lambda a: a["bbox"].__setitem__(0, float("nan")), "NaN"),
        (lambda a: a["bbox"].__setitem__(0, 1e300), "is not finite"),
        (lambda a: a.update(area=1e300), "its area of inf"),
        (lambda a: a.update(area=-1.0), "its area of -1"),
        (lambda a: a.update(category_id=99), "no category has the id 99"),
        (lambda a: a.update(bbox="none"), "bbox"),
    ],
)
def test_a_wrong_annotation_breaks_its_image_alone(
    change: Change, reason: str, tmp_path: Path
) -> None:
    content = document(20)
    wrong = content["annotations"][9]
    change(wrong)
    index = index_of(tmp_path, content)
    row = [image["id"] for image in content["images"]].index(wrong["image_id"])
    assert index.faults.rows.tolist() == [row]
    assert reason in index.faults.explain(row)
    assert f"{tmp_path / 'instances.json'}: annotations[9]: " in index.faults.explain(row)
    ((count, _),) = index.extra["annotation_faults"].values()
    assert count == 1


def test_bad_boxes_can_be_left_out(tmp_path: Path) -> None:
    content = document(20)
    content["annotations"][9]["bbox"][2] = 0
    content["annotations"][10]["bbox"][0] = 95
    index = index_of(tmp_path, content, bad_boxes="drop", crowd="keep")
    assert len(index.faults) == 0
    assert len(index.annotations["boxes"].values) == len(content["annotations"]) - 2
    assert sum(count for count, _ in index.extra["annotation_faults"].values()) == 2


def test_annotations_of_images_that_are_not_listed_are_a_warning(tmp_path: Path) -> None:
    content = document(20)
    content["annotations"][4]["image_id"] = 5
    index = index_of(tmp_path, content)
    assert "annotations[4]: its image is not listed" in index.warning
    assert len(index.faults) == 0


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    first, second = document(10), document(8, seed=1)
    for image in second["images"]:
        image["file_name"] = f"second-{image['file_name']}"
    second["annotations"][0]["bbox"][2] = 0
    files = [write(tmp_path, first, "a.json"), write(tmp_path, second, "b.json")]
    index = Coco(root=tmp_path / "images", annotations=files, crowd="keep").index()
    assert len(index) == 18
    assert index.faults.rows.tolist() == [11]
    assert f"{files[1]}: annotations[0]: " in index.faults.explain(11)
    assert rows(index, "area")[:10] == expected(first, lambda a: a["area"])
    assert rows(index, "area")[12:] == expected(second, lambda a: a["area"])[2:]
    second["categories"][0]["name"] = "fish"
    files[1].write_text(json.dumps(second))
    with pytest.raises(DataError, match=r"b\.json: its categories are not those of .*a\.json"):
        Coco(root=tmp_path / "images", annotations=files).index()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["images"][3].update(id=101), r"images\[3\]: another image has the id 101"),
        (
            lambda d: d["images"][3].update(file_name="001.jpg"),
            r"images\[3\]: 001.jpg is listed .*images\[1\]",
        ),
        (
            lambda d: d["images"][3].update(file_name="../x.jpg"),
            r"images\[3\]: '\.\./x\.jpg' does not lie",
        ),
        (lambda d: d["images"][3].update(file_name="a\0"), r"images\[3\]: .*NUL"),
        (lambda d: d.pop("images"), "it has no array 'images'"),
    ],
)
def test_files_without_sense_are_refused(change: Change, reason: str, tmp_path: Path) -> None:
    content = document()
    file = write(tmp_path, content)
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=rf"^{file}: {reason}"):
        Coco(root=tmp_path / "images", annotations=file).index()


def test_a_cut_or_missing_file_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, document())
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=rf"{file}: .*cut off"):
        Coco(root=tmp_path / "images", annotations=file).index()
    with pytest.raises(DataError, match=r"no such file.*data\.annotations"):
        Coco(root=tmp_path / "images", annotations=tmp_path / "no.json").index()
    with pytest.raises(DataError, match=r"no such folder.*data\.root"):
        Coco(root=tmp_path / "no", annotations=file).index()


def test_ids_that_are_no_labels_are_refused(tmp_path: Path) -> None:
    content = document()
    content["categories"].append({"id": 10**12, "name": "far"})
    assert index_of(tmp_path, content).classes[-1] == "far"
    with pytest.raises(DataError, match=r"data\.classes"):
        index_of(tmp_path, content, classes="original")


def test_the_second_load_reads_the_saved_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "cache"))
    content = document(20)
    content["annotations"][9]["bbox"][2] = 0
    file = write(tmp_path, content)
    os.utime(file, (1e9, 1e9))
    os.utime(file.parent, (1e9, 1e9))
    source = Coco(root=tmp_path / "images", annotations=file)
    monkeypatch.setattr("gpupipe.dataset.index_cache.RACY_SECONDS", -1000.0)
    first = source.index()

    def refuse(*_: Any) -> None:
        raise AssertionError("the file is read again")

    monkeypatch.setattr(Coco, "build", refuse)
    second = source.index()
    assert second.fingerprint == first.fingerprint
    assert second.faults.rows.tolist() == first.faults.rows.tolist()
    assert second.faults.explain(int(first.faults.rows[0])) == first.faults.explain(
        int(first.faults.rows[0])
    )
    for name, column in first.annotations.items():
        assert np.array_equal(second.annotations[name].values, column.values)
    file.write_bytes(file.read_bytes() + b"\n")
    with pytest.raises(AssertionError, match="read again"):
        source.index()
