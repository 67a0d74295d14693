"""COCO files: what is read is what json reads; what is wrong is named with its record."""

import io
import json
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from gpupipe.formats.coco import CocoFile, read_coco
from gpupipe.formats.json_items import iter_blocks
from helpers.coco_files import CATEGORIES, document

Change = Callable[[dict[str, Any]], Any]


def read(content: dict[str, Any] | bytes, with_keypoints: bool = False) -> CocoFile:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return read_coco(io.BytesIO(text), with_keypoints)


@pytest.mark.parametrize(
    "keys", [["images", "annotations", "categories"], ["categories", "annotations", "images"]]
)
@pytest.mark.parametrize("block_bytes", [50, 1 << 20])
def test_everything_is_read_in_any_order(
    keys: list[str], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_blocks = partial(iter_blocks, block_bytes=block_bytes)
    monkeypatch.setattr("gpupipe.formats.coco.iter_blocks", small_blocks)
    whole = document(20, points=2)
    content = read({key: whole[key] for key in keys}, with_keypoints=True)
    annotations, images = whole["annotations"], whole["images"]
    found = content.annotations
    assert content.num_annotations == len(found) == len(annotations)
    assert content.file_names == [image["file_name"] for image in images]
    assert content.image_ids.tolist() == [image["id"] for image in images]
    assert content.sizes.tolist() == [[image["height"], image["width"]] for image in images]
    assert {n: c.name for n, c in content.categories.items()} == CATEGORIES
    assert list(content.categories) == sorted(CATEGORIES)
    expected = [
        [left, top, left + width, top + height]
        for left, top, width, height in (a["bbox"] for a in annotations)
    ]
    assert found.boxes.tolist() == expected
    assert found.records.tolist() == list(range(len(annotations)))
    assert found.image_ids.tolist() == [a["image_id"] for a in annotations]
    assert found.category_ids.tolist() == [a["category_id"] for a in annotations]
    assert found.area.tolist() == [a["area"] for a in annotations]
    assert found.is_crowd.tolist() == [bool(a["iscrowd"]) for a in annotations]
    assert found.keypoints.reshape(-1, 6).tolist() == [a["keypoints"] for a in annotations]


def test_area_and_iscrowd_may_be_missing() -> None:
    whole = document()
    for annotation in whole["annotations"]:
        del annotation["area"], annotation["iscrowd"]
    found = read(whole).annotations
    sides = found.boxes[:, 2:] - found.boxes[:, :2]
    assert np.allclose(found.area, sides.prod(1))
    assert not found.is_crowd.any()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda a: a.update(bbox=[1, 2, 3]), "array' of length 4: 'bbox'"),
        (lambda a: a.update(bbox=[1, 2, 3, float("nan")]), "NaN"),
        (lambda a: a.update(area=float("inf")), "NaN or Infinity"),
        (lambda a: a.update(bbox=[1, 2, 3, "four"]), "got 'str': 'bbox[3]'"),
        (lambda a: a.update(category_id=10**30), "category_id"),
        (lambda a: a.update(category_id=1.5), "category_id"),
        (lambda a: a.pop("bbox"), "bbox"),
        (lambda a: a.update(area="large"), "area"),
        (lambda a: a.update(keypoints=[1, 2]), "2 numbers in 'keypoints'"),
        (lambda a: a.update(keypoints=[1, 2, "v"] * 2), "keypoints[2]"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_a_fault(change: Change, reason: str) -> None:
    whole = document(points=2)
    change(whole["annotations"][7])
    content = read(whole, with_keypoints=True)
    (fault,) = content.faults
    assert (fault.record, fault.image_id) == (7, whole["annotations"][7]["image_id"])
    assert reason in fault.reason
    assert content.num_annotations == len(whole["annotations"])
    assert content.annotations.records.tolist() == [
        n for n in range(len(whole["annotations"])) if n != 7
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d["annotations"][3].update(image_id="a"), r"annotations\[3\]: .*image_id"),
        (lambda d: d["annotations"][3].update(image_id=10**30), r"annotations\[3\]: .*image_id"),
        (lambda d: d["annotations"].insert(3, [1]), r"annotations\[3\]: "),
        (lambda d: d["images"][4].pop("file_name"), r"images\[4\]: .*file_name"),
        (lambda d: d["images"][4].update(width=-1), r"images\[4\]: -1 x "),
        (lambda d: d["images"][4].update(id=2**64), r"images\[4\]: .*64 bits"),
        (lambda d: d["categories"][1].update(id=7), r"categories\[1\]: .* 7"),
        (lambda d: d["categories"][1].pop("name"), r"categories\[1\]: .*name"),
        (lambda d: d.pop("categories"), "no array 'categories'"),
        (lambda d: d.update(annotations={}), "no array 'annotations'"),
        (lambda d: d.update(images=[]), "'images' is empty"),
        (lambda d: [a.pop("bbox") for a in d["annotations"]], "no annotation can be read"),
        (lambda d: d["categories"][0].update(keypoints=["a"]), "different numbers of keypoints"),
    ],
)
def test_a_file_without_sense_is_refused(change: Change, reason: str) -> None:
    whole = document(points=2)
    change(whole)
    with pytest.raises(ValueError, match=reason):
        read(whole, with_keypoints=True)


def test_keypoints_must_be_there_if_asked_for() -> None:
    with pytest.raises(ValueError, match=r"data\.keypoints"):
        read(document(), with_keypoints=True)


def test_deep_brackets_are_named() -> None:
    whole = document()
    whole["annotations"][2]["segmentation"] = "DEEP"
    deep = b"[" * 100_000 + b"]" * 100_000
    with pytest.raises(ValueError, match=r"annotations\[2\]: too many brackets"):
        read(json.dumps(whole).encode().replace(b'"DEEP"', deep))
