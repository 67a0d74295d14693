"""The specs of COCO's annotations, which two sources have."""

from collections.abc import Mapping

from gpupipe.dataset.spec import Spec

COCO_SPECS: Mapping[str, Spec] = {
    "boxes": Spec.of_boxes(),
    "labels": Spec.of_rows("int64", rows_with="boxes"),
    "area": Spec.of_rows("float32", rows_with="boxes"),
    "iscrowd": Spec.of_rows("int64", rows_with="boxes"),
}
"""The fields of an image with boxes."""
