"""Layouts: the axes of arrays as letters."""

import pytest

from gpupipe.dataset.layout import (
    canonical_layout,
    default_layout,
    explain_wrong_layout,
    spatial_axes,
)


def test_axes_of_steps_are_others_then_channels_then_space() -> None:
    assert canonical_layout("HWTC") == "TCHW"
    assert canonical_layout("L") == "CL"
    assert spatial_axes("TDHWC") == "DHW"
    assert [default_layout(n) for n in range(5)] == ["", "L", "HW", "CHW", "CDHW"]
    assert len(set(default_layout(8))) == 8


@pytest.mark.parametrize(
    ("layout", "axes", "said"),
    [
        ("CHW", 3, ""),
        ("TLC", None, ""),
        ("chw", 3, "a letter from A to Z"),
        ("CC", 2, "each another"),
        ("WH", 2, "in this order"),
        ("HCW", 3, "next to each other"),
        ("DHL", 3, "HW, DHW or L"),
        ("CHW", 4, "for 3 axes, but the arrays have 4"),
    ],
)
def test_layouts_that_are_wrong(layout: str, axes: int | None, said: str) -> None:
    found = explain_wrong_layout(layout, axes)
    assert said in found
    assert bool(found) == bool(said)
