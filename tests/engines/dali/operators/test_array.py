"""Fields that are arrays in DALI: how they enter it, their sizes, and DALI's names for layouts.

Steps: test_arrays.py.
"""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from nvidia.dali import types

from gpupipe import config
from gpupipe.dataset.layout import explain_wrong_layout
from gpupipe.dataset.spec import Spec
from gpupipe.engines.base import Job
from gpupipe.engines.dali.operators.array import (
    channel_layout,
    feed_format,
    sizes,
    some_size,
    video_layout,
)
from gpupipe.pipeline.spec_checks import has_channel_layout, is_video_like
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


def test_what_dali_calls_layouts() -> None:
    assert [video_layout(layout) for layout in ("HW", "CHW", "TCHW", "HWC", "THWC", "CDHW")] == [
        "HWC",
        "CHW",
        "FCHW",
        "HWC",
        "FHWC",
        "CDHW",
    ]
    assert [video_layout(layout) for layout in ("ABTHW", "HWCP")] == [None, None]
    assert channel_layout("LC") == ("HWC", [0])
    assert channel_layout("CL") == ("CHW", [2])
    assert channel_layout("") == ("HWC", [0, 1, 2])
    assert channel_layout("TCL") == ("FCHW", [3])
    assert channel_layout("CABDE") is None


@pytest.mark.parametrize("axes", range(7))
def test_every_layout_that_a_step_accepts_has_a_name(axes: int) -> None:
    layouts = {"".join(order) for order in permutations("CDHWLAB", axes)}
    for layout in (layout for layout in layouts if not explain_wrong_layout(layout)):
        assert (channel_layout(layout) is not None) == has_channel_layout(layout), layout
        if set("HWL") & set(layout):
            assert (video_layout(layout) is not None) == is_video_like(layout), layout
