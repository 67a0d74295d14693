"""Fields that are arrays in DALI: how they enter it, and their sizes. Steps: test_arrays.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import types

from gpupipe import config
from gpupipe.dataset.spec import Spec
from gpupipe.engines.base import Job
from gpupipe.engines.dali.operators.array import feed_format, sizes, some_size
from gpupipe.runtime.progress import ignore_progress


def spec_of(layout: str, dtype: str = "float32", **sizes: int) -> Spec:
    return Spec.of_array(dtype, [sizes.get(axis) for axis in layout], layout)


def test_an_array_enters_dali_in_its_own_dtype_and_layout() -> None:
    assert feed_format(spec_of("CHW", "uint8")) == (types.UINT8, 3, "CHW")
    assert feed_format(spec_of("LC", "float64")) == (types.FLOAT64, 2, "LC")
    assert feed_format(spec_of("", "int64")) == (types.INT64, 0, "")


def test_an_axis_that_differs_gets_a_large_size() -> None:
    assert some_size(spec_of("CHW", C=3, H=20)).tolist() == [[20, 4096]]
    assert some_size(spec_of("LC", L=7)).tolist() == [[7]]


@pytest.mark.parametrize(
    ("layout", "shape", "expected"),
    [("CHW", (3, 8, 9), [8, 9]), ("HWC", (8, 9, 3), [8, 9]), ("DHW", (4, 8, 9), [4, 8, 9])],
)
def test_sizes_are_those_of_the_spatial_axes(
    tmp_path: Path, layout: str, shape: tuple[int, ...], expected: list[int]
) -> None:
    np.save(tmp_path / "rows.npy", np.zeros((5, *shape), np.float32))
    data = {"source": "numpy", "files": str(tmp_path / "rows.npy"), "rows": True, "layout": layout}
    checked = config.read({"data": data, "pipeline": []}, device="cpu")
    index = checked.source.index(ignore_progress)
    job = Job(index, checked.pipeline, checked.loader, 1)
    assert sizes(job, index.main, np.array([4, 0])).tolist() == [expected] * 2


def test_sizes_of_files_of_several_shapes_are_their_own(tmp_path: Path) -> None:
    for n in range(3):
        np.save(tmp_path / f"{n}.npy", np.zeros((3, 8 + n, 9), np.float32))
    data = {"source": "numpy", "files": str(tmp_path / "*.npy")}
    checked = config.read({"data": data, "pipeline": []}, device="cpu")
    index = checked.source.index(ignore_progress)
    job = Job(index, checked.pipeline, checked.loader, 1)
    assert sizes(job, index.main, np.array([2, 0])).tolist() == [[10, 9], [8, 9]]
