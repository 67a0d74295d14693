"""Records of COCO: numbers beyond float32, and annotations of several parts."""

import numpy as np
import pytest

from gpupipe.formats.coco_records import BoxAnnotation, check_id, join_annotations, make_arrays


def test_huge_numbers_become_infinite_without_a_warning() -> None:
    items = [
        BoxAnnotation(1, 2, (1e300, 0.0, 1e308, 5.0)),
        BoxAnnotation(1, 2, (1.5, 2.0, 3.0, 4.0)),
    ]
    annotations, counts = make_arrays(np.arange(2), items, False)
    assert annotations.boxes[0].tolist() == [np.inf, 0, np.inf, 5]
    assert annotations.boxes[1].tolist() == [1.5, 2, 4.5, 6]
    assert annotations.area.tolist() == [np.inf, 12]
    assert len(counts) == 0
    both = join_annotations([annotations, annotations])
    assert both.area.tolist() == [np.inf, 12, np.inf, 12]


def test_ids_beyond_int64_are_refused() -> None:
    assert check_id(-(2**63), "x") == -(2**63)
    with pytest.raises(ValueError, match=r"images\[1\]: 9223372036854775808 "):
        check_id(2**63, "images[1]")
