"""Small COCO and VOC data sets, drawn from a seed, with images that can be decoded."""

import json
import random
from pathlib import Path
from typing import Any

from PIL import Image

CATEGORIES = {7: "dog", 3: "cat", 12: "horse"}
"""In an order other than that of the ids."""


def document(images: int = 12, seed: int = 0, points: int = 0) -> dict[str, Any]:
    """A COCO document: image n has n % 5 annotations, which lie in it."""
    draw = random.Random(seed)
    document: dict[str, Any] = {"info": {"year": 2017}, "images": [], "annotations": []}
    for n in range(images):
        width, height = draw.randint(40, 90), draw.randint(40, 90)
        document["images"].append(
            {"id": 100 + n, "file_name": f"{n:03}.jpg", "width": width, "height": height}
        )
        for _ in range(n % 5):
            left, top = draw.randint(0, 60) / 2, draw.randint(0, 60) / 2
            box = [left, top, draw.randint(2, 20) / 2, draw.randint(2, 20) / 2]
            annotation = {
                "id": len(document["annotations"]),
                "image_id": 100 + n,
                "category_id": draw.choice(list(CATEGORIES)),
                "bbox": box,
                "area": box[2] * box[3] / 2,
                "iscrowd": int(len(document["annotations"]) % 6 == 5),
                "segmentation": [[1.5, 2, 3, 4, 5, 6]],
            }
            if points:
                annotation["keypoints"] = [left, top, 2] * points
            document["annotations"].append(annotation)
    names = {"keypoints": [f"point {n}" for n in range(points)], "skeleton": [[1, 2]]}
    document["categories"] = [
        {"id": number, "name": name} | (names if points else {})
        for number, name in CATEGORIES.items()
    ]
    return document


def write(folder: Path, document: dict[str, Any], name: str = "instances.json") -> Path:
    """Write a COCO document, and its images that are not there yet; return the JSON file."""
    (folder / "images").mkdir(parents=True, exist_ok=True)
    for image in document["images"]:
        path = folder / "images" / image["file_name"]
        if not path.exists():
            Image.new("RGB", (image["width"], image["height"]), "teal").save(path)
    file = folder / name
    file.write_text(json.dumps(document))
    return file


VOC_XML = """<annotation><folder>VOC2012</folder><filename>{name}.jpg</filename>
<size><width>{width}</width><height>{height}</height><depth>3</depth></size>
{objects}</annotation>"""
VOC_OBJECT = """<object><name>{label}</name><difficult>{difficult}</difficult>
<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox></object>"""


def voc_xml(name: str, size: tuple[int, int], *objects: tuple[str, int, list[float]]) -> str:
    """The XML of an image of `size` (width, height), with (class, difficult, corners) of each
    object.
    """
    texts = [VOC_OBJECT.format(*box, label=label, difficult=d) for label, d, box in objects]
    return VOC_XML.format(name=name, width=size[0], height=size[1], objects="".join(texts))


def write_voc(root: Path, images: dict[str, str], image_set: str = "train") -> Path:
    """Write a VOC data set: the XML of each image by name, and images of 60 x 40; return `root`."""
    for folder in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in images.items():
        (root / "Annotations" / f"{name}.xml").write_text(text)
        Image.new("RGB", (60, 40), "teal").save(root / "JPEGImages" / f"{name}.jpg")
    (root / "ImageSets/Main" / f"{image_set}.txt").write_text("\n".join(images))
    return root
