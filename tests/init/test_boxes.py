"""Images with boxes: `gpupipe init` finds COCO's and VOC's annotations, and the config runs."""

import json
import shutil
from pathlib import Path

import pytest

import gpupipe
from gpupipe.init.detect import detect
from gpupipe.init.detected import Detected
from gpupipe.init.survey import survey
from helpers.coco_files import document, voc_xml, write, write_voc


def coco_folder(root: Path) -> Path:
    """A folder as COCO's archives make it, with captions beside the boxes."""
    (root / "annotations").mkdir(parents=True)
    for seed, part in enumerate(("train", "val")):
        file = write(root / part, document(12, seed=seed))
        shutil.move(file, root / "annotations" / f"instances_{part}2017.json")
        shutil.move(root / part / "images", root / f"{part}2017")
        (root / part).rmdir()
    captions = {
        "images": [{"id": 1, "file_name": "000.jpg"}],
        "annotations": [{"id": 1, "image_id": 1, "caption": "a horse"}],
    }
    (root / "annotations" / "captions_train2017.json").write_text(json.dumps(captions))
    return root


def test_coco_has_parts_and_a_folder_of_images_each(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "coco")
    parts = detect(root)
    assert list(parts) == ["train", "val"]
    for name, part in parts.items():
        assert part.source == "coco"
        assert part.options == {
            "root": str(root / f"{name}2017"),
            "annotations": str(root / "annotations" / f"instances_{name}2017.json"),
        }
    assert parts["train"].unused == "annotations/captions_train2017.json"
    found = survey(parts["train"])
    assert (found.count, found.has_boxes, found.has_labels) == (12, True, False)
    data = {"source": "coco"} | parts["train"].options
    pipeline = ["decode", {"resize": {"size": [32, 32]}}]
    with gpupipe.load({"data": data, "pipeline": pipeline}, batch_size=4, device="cpu") as loader:
        assert "boxes" in next(iter(loader))


def voc_part(root: Path) -> dict[str, Detected]:
    box = [1, 1, 9, 9]
    images = {"a": voc_xml("a", (60, 40), ("crab", 0, box)), "b": voc_xml("b", (60, 40))}
    write_voc(root, images)
    write_voc(root, {"b": voc_xml("b", (60, 40), ("dog", 0, box))}, "val")
    write_voc(root, {"a": images["a"]}, "crab_train")
    return detect(root)


def test_voc_has_its_sets_and_classes(tmp_path: Path) -> None:
    parts = voc_part(tmp_path / "VOC2012")
    root = {"root": f"{tmp_path}/VOC2012/", "classes": ["crab", "dog"]}
    for name, part in parts.items():
        assert part.source == "voc"
        assert Path(part.options["root"]) == tmp_path / "VOC2012"
        assert part.options["image_set"] == name
        assert part.options["classes"] == root["classes"]
    assert survey(parts["train"]).has_boxes


@pytest.mark.parametrize("text", ["{}", "[1]", '{"images": 5}', '{"images": [', "x" * 100])
def test_other_json_is_no_annotation_file(text: str, tmp_path: Path) -> None:
    write(tmp_path, document(4))
    (tmp_path / "instances.json").write_text(text)
    assert detect(tmp_path)["train"].source == "folder"
