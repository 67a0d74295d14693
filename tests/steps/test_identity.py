from __future__ import annotations

import itertools
from pathlib import Path

from gpupipe.dataset.spec import Spec
from gpupipe.formats.npy import DTYPES
from gpupipe.steps.identity import Identity
from helpers.reference import differences, emitted, load


def test_pixels_stay(small_gallery: Path) -> None:
    assert max(d.most for d in differences(small_gallery, "identity")) == 0


def test_it_is_no_operator(small_gallery: Path) -> None:
    with load(small_gallery) as without, load(small_gallery, "identity") as loader:
        assert emitted(loader) == emitted(without)


def test_it_takes_all_arrays() -> None:
    for dtype, layout in itertools.product(DTYPES, ["CHW", "L", "CDHW", "TQ"]):
        spec = Spec.of_array(dtype, (4, 5, 6, 7)[: len(layout)], layout)
        assert Identity().infer_spec(spec) == spec
