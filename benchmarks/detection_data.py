"""Photographs with drawn boxes, keypoints or masks: about 8 boxes an image."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import photos
from PIL import Image

_CLASSES = 80
_BOXES = 8.0
"""Boxes an image on average; each image has at least one."""
_SIZE = (640, 480)
_PARTS = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")


def coco_like(root: Path, count: int, *, keypoints: bool = False) -> tuple[Path, Path]:
    """Return the folder of `count` JPEGs of 640x480 pixels, and the annotation file beside it.

    Both are made once. With `keypoints`, each box is a person with 17. The sides of the boxes are a
    twentieth to four fifths of the image's, evenly spread over their logarithms: as in COCO, most
    boxes are small.
    """
    folder = photos.crops(root, count, _SIZE, quality=90)
    file = folder.with_suffix(".keypoints.json" if keypoints else ".json")
    if not file.exists():
        drawn = _draw(_list_names(folder))
        if keypoints:
            _add_keypoints(drawn)
        file.write_text(json.dumps(drawn))
    return folder, file


def with_masks(root: Path, count: int) -> Path:
    """Return a CSV file of the same JPEGs, each with a PNG mask of its boxes; made once."""
    folder = photos.crops(root, count, _SIZE, quality=90)
    file = folder.with_suffix(".csv")
    if not file.exists():
        _write_masks(file, folder, _draw(_list_names(folder)))
    return file


def _list_names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))


def _write_masks(file: Path, folder: Path, drawn: dict[str, Any]) -> None:
    masks = folder.with_name(f"{folder.name}-masks")
    pixels = np.zeros((len(drawn["images"]), *_SIZE[::-1]), np.uint8)
    for one in drawn["annotations"]:
        left, top, width, height = (round(n) for n in one["bbox"])
        window = pixels[one["image_id"], top : top + height, left : left + width]
        window[:] = one["category_id"] % 21
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow(["image", "mask"])
        for image in drawn["images"]:
            name = Path(image["file_name"])
            mask = (masks / name).with_suffix(".png")
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[image["id"]]).save(mask)
            rows.writerow([folder / name, mask])


def _add_keypoints(drawn: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    for one in drawn["annotations"]:
        corner, sides = np.split(np.asarray(one["bbox"]), 2)
        places = corner + sides * rng.random((17, 2))
        one["keypoints"] = np.c_[places.round(2), np.full(17, 2)].ravel().tolist()
        one["num_keypoints"], one["category_id"] = 17, 1
    names = ["nose", *(f"{side}_{part}" for part in _PARTS for side in ("left", "right"))]
    drawn["categories"] = [{"id": 1, "name": "person", "keypoints": names}]


def _draw(names: list[str]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    width, height = _SIZE
    annotations: list[dict[str, Any]] = []
    for image in range(len(names)):
        for _ in range(1 + rng.poisson(_BOXES - 1)):
            sides = np.exp(rng.uniform(np.log(0.05), np.log(0.8), 2)) * _SIZE
            left, top = rng.uniform(0, np.subtract(_SIZE, sides))
            box = [round(float(n), 2) for n in (left, top, *sides)]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": image,
                    "category_id": int(rng.integers(1, _CLASSES + 1)),
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    return {
        "images": [
            {"id": n, "file_name": name, "width": width, "height": height}
            for n, name in enumerate(names)
        ],
        "annotations": annotations,
        "categories": [{"id": n, "name": f"class {n}"} for n in range(1, _CLASSES + 1)],
    }
