"""Photographs with drawn boxes, as COCO lists them: about 8 boxes an image."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import photos

_CLASSES = 80
_BOXES = 8.0
"""Boxes an image on average; each image has at least one."""
_SIZE = (640, 480)


def coco_like(root: Path, count: int) -> tuple[Path, Path]:
    """Return the folder of `count` JPEGs of 640x480 pixels, and the annotation file beside it.

    Both are made once. The sides of the boxes are a twentieth to four fifths of the image's, evenly
    spread over their logarithms: as in COCO, most boxes are small.
    """
    folder = photos.crops(root, count, _SIZE, quality=90)
    file = folder.with_suffix(".json")
    if not file.exists():
        names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jpg"))
        file.write_text(json.dumps(_draw(names)))
    return folder, file


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
