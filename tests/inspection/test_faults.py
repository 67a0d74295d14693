"""Annotations that disagree with the files."""

import base64
import io
import re
from pathlib import Path

from PIL import Image

from gpupipe import config as configs
from gpupipe.inspection import report
from gpupipe.inspection.findings import as_json, find_all
from gpupipe.inspection.scan import scan
from gpupipe.runtime.progress import ignore_progress
from helpers.coco_files import document, write


def test_wrong_annotations_are_found_each_in_its_image(tmp_path: Path) -> None:
    content = document(12)
    boxes = {a["image_id"] - 100: a for a in content["annotations"]}  # the last one of each image
    width = content["images"][1]["width"]
    boxes[1]["bbox"] = [width - 10, 1, 15, 5]
    boxes[2]["bbox"] = [3, 3, 1, 8]
    boxes[3]["category_id"] = 99
    for number in (1, 2, 3):
        boxes[number]["iscrowd"] = 0
    file = write(tmp_path, content)
    Image.new("RGB", (30, 40)).save(tmp_path / "images" / "004.jpg")  # and the JSON says another
    data = {"source": "coco", "root": f"{tmp_path}/images", "annotations": str(file)}
    config = configs.read({"data": data, "pipeline": ["decode"], "loader": {"batch_size": 2}})
    scanned = scan("train", config, config.source.index(), True, ignore_progress)
    findings = find_all([scanned])
    found = {
        finding.kind: {
            group[0].full_name.removeprefix("train: "): group[0].why for group in finding.groups
        }
        for finding in findings
    }
    assert list(found["sizes"]) == ["004.jpg"]
    assert "30 x 40" in found["sizes"]["004.jpg"]
    assert "001.jpg" in found["outside"]
    assert set(found["outside"]) <= {"001.jpg", "004.jpg"}
    assert "002.jpg" in found["tiny"]
    assert list(found["annotations"]) == ["003.jpg"]
    assert (
        "unknown class" in found["annotations"]["003.jpg"]
        or "99" in found["annotations"]["003.jpg"]
    )
    page = report.write(tmp_path / "out", "c", as_json([scanned], findings), findings)
    alts = re.findall(r'<img alt="train: (\d+).jpg" src="data:image/jpeg;base64,', page.read_text())
    assert len(alts) == sum(finding.count for finding in findings)
    boxes = sample_picture(page, "002")  # teal, with outlines of other colours
    assert len(boxes.getcolors(1 << 16)) > 20


def sample_picture(page: Path, name: str) -> Image.Image:
    """The first picture of a sample in a page."""
    content = re.search(rf'<img alt="train: {name}.jpg" src="[^,]+,([^"]+)"', page.read_text())
    assert content is not None
    with Image.open(io.BytesIO(base64.b64decode(content[1]))) as picture:
        return picture.convert("RGB")
