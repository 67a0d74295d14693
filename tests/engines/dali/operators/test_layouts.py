"""DALI's names for layouts, of every layout that a step accepts."""

from __future__ import annotations

from itertools import permutations

import pytest

from gpupipe.dataset.spec import explain_wrong_layout
from gpupipe.engines.dali.operators.layouts import channel_layout, video_layout
from gpupipe.pipeline.spec_checks import has_channel_layout, is_video_like


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
