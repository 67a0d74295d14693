from pathlib import Path

import numpy as np
import pytest

from gpupipe.dataset.array_specs import build_array_spec
from gpupipe.errors import DataError
from gpupipe.sources.numpy import Numpy


def test_the_layout_is_that_of_the_option_or_of_the_number_of_axes(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 2, 3), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((5, 2, 3), np.float32))
    index = Numpy(files=str(tmp_path / "*.npy")).index()
    spec = build_array_spec(index, "array", None, pairs=False)
    assert (spec.layout, spec.shape, spec.dtype) == ("CHW", (None, 2, 3), "float32")
    assert build_array_spec(index, "array", "HWC", pairs=False).layout == "HWC"
    assert build_array_spec(index, "array", None, pairs=True).layout == "HWP"
    assert build_array_spec(index, "array", "CLP", pairs=True).layout == "CLP"
    with pytest.raises(DataError, match=r"data\.layout: .*'HW'.*\(\?, 2, 3\), as in .*a\.npy"):
        build_array_spec(index, "array", "HW", pairs=False)
