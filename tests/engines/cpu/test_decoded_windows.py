"""Which window of an image the steps after `decode` need, and that it changes no pixel.

`make sanitize` runs this file under AddressSanitizer and UndefinedBehaviorSanitizer.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.engines.cpu import windows as limits
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.ops import DecodeOp
from gpupipe.engines.cpu.program import Program
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.engines.cpu.windows import add_windows
from gpupipe.pipeline.step import Spec
from helpers.loaders import loading
from helpers.reference import by_id

pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
load = loading(engine="cpu", threads=2, batch_size=2)
SPEC = Spec.of_image(3)


def windows(size: list[float], *calls: tuple[str, Any, Any], cut: int = 0) -> Any:
    """The windows that `decode` gets if these primitives follow it."""
    traced = Tracer([size], find_rules(), SPEC)
    traced.decode("rgb", False)
    for n, (name, first, second) in enumerate(calls, 2):
        more = {"crop": (), "resize": (True,), "pad": ("edge",)}[name]
        getattr(traced, name)(np.array(first) if name != "resize" else first, second, *more)
        if n == cut:
            traced.end_prefix()
    return read_windows(traced.program())


def read_windows(program: Program) -> Any:
    decode = program.ops[0]
    assert isinstance(decode, DecodeOp)
    return () if decode.windows is None else decode.windows.tolist()


def test_a_crop_needs_its_window() -> None:
    assert windows([40, 50], ("crop", [3, 4], [10, 20])) == [[3, 4, 10, 20]]
    assert windows([40, 50], ("crop", [-3, 40], [60, 20])) == [[0, 40, 40, 10]]
    assert windows([40, 50], ("crop", [50, 60], [9, 9])) == [[0, 0, 40, 50]], "outside the image"


def test_a_crop_of_a_resized_image_needs_a_window_with_a_margin() -> None:
    resize = ("resize", [100, 200], "bilinear")
    assert windows([400, 400], resize, ("crop", [50, 50], [10, 10])) == [[194, 96, 52, 28]]
    assert windows([50, 100], resize, ("crop", [0, 190], [10, 10])) == [[0, 92, 8, 8]]


def warped_window(matrix: list[list[float]]) -> Any:
    """The window of an image of 40 x 50 whose 40 x 50 pixels are warped."""
    traced = Tracer([[40, 50]], find_rules(), SPEC)
    traced.decode("rgb", False)
    given = np.array([matrix], np.float64)
    none = np.zeros((1, 2))
    traced.warp(given[:, :, :2], given[:, :, 2], none, "bilinear", (0.0, 0.0, 0.0))
    return read_windows(traced.program())


def test_a_warp_that_enlarges_needs_a_window_with_a_margin() -> None:
    """Output pixel 0 lies at 0.5, and shows the source at (matrix * 0.5) - 0.5."""
    assert warped_window([[0.5, 0, 20], [0, 0.5, 10]]) == [[7, 17, 27, 32]]
    assert warped_window([[-0.5, 0, 45], [0, 0.5, 10]]) == [[7, 17, 27, 32]], "flipped"
    assert warped_window([[0, 0.5, 20], [0.5, 0, 10]]) == [[7, 17, 32, 27]], "turned"
    assert warped_window([[2, 0, -20], [0, 2, -10]]) == [[0, 0, 40, 50]]
    assert warped_window([[1, 0, 900], [0, 1, 0]]) == [[0, 0, 40, 50]], "outside the image"
    assert warped_window([[1e300, 0, 0], [0, -1e300, 0]]) == [[0, 0, 40, 50]], "very far"


def test_other_steps_need_the_whole_image() -> None:
    crop = ("crop", [3, 4], [10, 20])
    assert windows([40, 50]) == ()
    assert windows([40, 50], ("resize", [30, 30], "bilinear")) == ()
    assert windows([40, 50], ("pad", [1, 1], [1, 1]), crop) == ()


def test_what_the_decoded_cache_keeps_is_whole() -> None:
    resize, crop = ("resize", [30, 30], "bilinear"), ("crop", [3, 4], [10, 20])
    assert windows([40, 50], resize, crop, cut=2) == ()
    assert windows([40, 50], crop, resize, cut=2) == [[3, 4, 10, 20]]


AFFINE = {"degrees": 180, "translate": [0.3, 0.3], "scale": [0.3, 6.0], "fill": 7}
PIPELINES: list[list[Any]] = [
    [{"random_resized_crop": {"size": 40, "interpolation": "bicubic"}}],
    [{"resize": {"size": 64}}, {"center_crop": {"size": 50}}],
    [
        {"resize": {"size": [30, 50], "interpolation": "bicubic"}},
        {"center_crop": {"size": [9, 11]}},
    ],
    [{"resize": {"size": [500, 400], "interpolation": "nearest"}}, {"random_crop": {"size": 90}}],
    [{"resize": {"size": 300, "antialias": False}}, {"random_crop": {"size": 90}}],
    [{"center_crop": {"size": [300, 100]}}],
    [{"random_crop": {"size": 200, "padding": 30}}],
    [{"random_zoom_out": {"fill": 9, "p": 0.7}}, {"random_crop": {"size": 90}}],
    ["random_photometric_distort", {"random_crop": {"size": 90}}],
    [
        {"color_jitter": {"brightness": 0.5, "saturation": 0.5, "hue": 0.1}},
        {"random_zoom_out": {"fill": 9, "p": 0.5}},
        {"random_crop": {"size": 200}},
    ],
    *(
        [{"random_affine": {**AFFINE, "interpolation": interpolation}}]
        for interpolation in ("nearest", "bilinear")
    ),
]


@pytest.mark.parametrize("steps", PIPELINES, ids=str)
@pytest.mark.parametrize("mode", ["rgb", "gray"])
def test_the_pixels_of_a_pipeline_do_not_change(
    faces: Path, steps: list[Any], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def add_and_note(traced: Any, size: Any) -> Any:
        added = add_windows(traced, size)
        if added and isinstance(added[0], DecodeOp):  # a branch may be empty
            used.extend(() if added[0].windows is None else added[0].windows)
        return added

    monkeypatch.setattr(limits, "add_windows", add_and_note)
    decode_step = {"decode": {"mode": mode}}
    with load(faces, [decode_step, *steps]) as loader:
        found = by_id(loader)
    assert used
    monkeypatch.setattr(limits, "_jpeg", None)
    with load(faces, [decode_step, *steps]) as loader:
        expected = by_id(loader)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[id], expected[id]) for id in expected)
