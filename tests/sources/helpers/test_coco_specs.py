"""The fields that images of COCO have, whichever source reads them."""

from pathlib import Path

from gpupipe.sources.coco import Coco
from gpupipe.sources.helpers.coco_specs import COCO_SPECS


def test_what_goes_with_boxes_has_their_rows() -> None:
    source = Coco(root=Path(), annotations=(Path("a.json"),))
    assert source.annotation_specs() == COCO_SPECS
    links = {
        name: spec.annotation and spec.annotation.rows_with for name, spec in COCO_SPECS.items()
    }
    assert links == {"boxes": "", "labels": "boxes", "area": "boxes", "iscrowd": "boxes"}
