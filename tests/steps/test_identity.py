from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.dataset.spec import Spec
from gpupipe.formats.npy import DTYPES
from gpupipe.steps.identity import Identity
from helpers.reference import differences, emitted, load


def test_pixels_stay(gallery: Path) -> None:
    assert max(d.most for d in differences(gallery, "identity")) == 0


def test_it_is_no_operator(gallery: Path) -> None:
    with load(gallery) as without, load(gallery, "identity") as loader:
        assert emitted(loader) == emitted(without)


@pytest.mark.parametrize("layout", ["CHW", "L", "CDHW", "TQ"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_takes_all_arrays(dtype: str, layout: str) -> None:
    spec = Spec.of_array(dtype, (4, 5, 6, 7)[: len(layout)], layout)
    assert Identity().infer_spec(spec) == spec
