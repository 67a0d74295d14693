"""The source voc: what it reads of Pascal VOC's folders, and what it refuses."""

import re
from pathlib import Path
from typing import Any

import pytest

from gpupipe.dataset.annotation_columns import offsets_of
from gpupipe.errors import DataError
from gpupipe.sources.voc import VOC_CLASSES, Voc
from helpers.coco_files import voc_xml, write_voc

SIZE = (60, 40)
IMAGES = {
    "2008_000001": voc_xml("x", SIZE, ("dog", 0, [1, 1, 60, 40]), ("person", 1, [2, 3, 4, 5])),
    "2008_000002": voc_xml("x", SIZE),
    "2008.3": voc_xml("x", SIZE, ("cat", 0, [10, 10, 20, 20])),
}


def test_boxes_count_from_zero_to_the_far_edge(tmp_path: Path) -> None:
    root = write_voc(tmp_path, IMAGES)
    index = Voc(root=root, image_set="train").index()
    boxes = index.annotations["boxes"]
    assert boxes.values.tolist() == [[0, 0, 60, 40], [1, 2, 4, 5], [9, 9, 20, 20]]
    assert offsets_of(index.annotations, "labels").tolist() == [0, 2, 2, 3]
    labels = [VOC_CLASSES[n] for n in index.annotations["labels"].values]
    assert labels == ["dog", "person", "cat"]
    assert index.annotations["difficult"].values.tolist() == [0, 1, 0]
    assert [index.names[n] for n in range(3)] == [f"JPEGImages/{name}.jpg" for name in IMAGES]
    assert index.sizes["image"].tolist() == [[40, 60]] * 3
    assert index.read(2)[:2].tolist() == [0xFF, 0xD8]
    assert list(Voc(root=root, image_set="train").annotation_specs()) == list(index.annotations)


def test_difficult_objects_can_be_left_out(tmp_path: Path) -> None:
    index = Voc(root=write_voc(tmp_path, IMAGES), image_set="train", difficult="drop").index()
    assert offsets_of(index.annotations, "boxes").tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (voc_xml("x", SIZE, ("dig", 0, [1, 1, 9, 9])), "object 1: 'dig' is no class"),
        (voc_xml("x", SIZE, ("dog", 0, [9, 9, 8, 9])), "object 1: the box .* has no area"),
        (voc_xml("x", SIZE, ("dog", 0, [70, 9, 80, 9])), "object 1: the box .* outside"),
        (voc_xml("x", SIZE, ("dog", 0, [1, 1, 9, "x"])), "object 1: <ymax> is 'x'"),
        ("<annotation>", "no XML"),
        ("<!DOCTYPE annotation SYSTEM 'x.dtd'><annotation/>", "DOCTYPE"),
    ],
)
def test_wrong_annotations_break_their_image_alone(text: str, reason: str, tmp_path: Path) -> None:
    root = write_voc(tmp_path, IMAGES | {"2008_000002": text})
    index = Voc(root=root, image_set="train").index()
    assert index.faults.rows.tolist() == [1]
    fault = index.faults.explain(1)
    assert re.match(rf"{root}/Annotations/2008_000002\.xml: .*{reason}", fault)
    assert len(index.annotations["boxes"].values) == 3


@pytest.mark.parametrize(
    ("options", "files", "reason"),
    [
        ({"image_set": "trian"}, {}, r"trian\.txt: no such file.*did you mean 'train'"),
        ({}, {"ImageSets/Main/train.txt": "a  1\nb -1"}, r"train\.txt:1: .*a second column"),
        ({}, {"ImageSets/Main/train.txt": "../a"}, r"train\.txt:1: "),
        ({}, {"ImageSets/Main/train.txt": "\n"}, r"train\.txt: it lists no images"),
        ({}, {"ImageSets/Main/train.txt": "nothing"}, r"nothing\.xml: no such file"),
        (
            {},
            {f"Annotations/{n}.xml": "<a/>" for n in IMAGES},
            "no file of annotations can be read",
        ),
        ({"root": "missing"}, {}, r"missing: no such folder.*data\.root"),
    ],
)
def test_folders_without_sense_are_refused(
    options: dict[str, Any], files: dict[str, str], reason: str, tmp_path: Path
) -> None:
    root = write_voc(tmp_path, IMAGES)
    for name, text in files.items():
        (root / name).write_text(text)
    with pytest.raises(DataError, match=reason):
        Voc(**({"root": root, "image_set": "train"} | options)).index()


def test_classes_of_ones_own(tmp_path: Path) -> None:
    root = write_voc(tmp_path, IMAGES)
    index = Voc(root=root, image_set="train", classes=("cat", "person", "dog")).index()
    assert index.annotations["labels"].values.tolist() == [2, 1, 0]
    assert index.classes == ["cat", "person", "dog"]
