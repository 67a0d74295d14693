import numpy as np

from gpupipe.bench.gallery_boxes import SPECS, build_columns
from gpupipe.dataset.annotation_columns import explain_inconsistency


def test_each_sample_has_the_same_boxes_in_the_photograph() -> None:
    columns = build_columns((200, 100), 3)
    assert columns.keys() == SPECS.keys()
    assert explain_inconsistency(columns, 3) == ""
    boxes = columns["boxes"].values.reshape(3, -1, 4)
    assert (boxes[0] == boxes).all()
    assert (boxes[..., 2:] > boxes[..., :2]).all()
    assert (boxes <= np.array([200, 100, 200, 100])).all()
