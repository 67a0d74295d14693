from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.steps.coarse_dropout import CoarseDropout
from helpers.arrays import ENGINES
from helpers.many_fields import loaded, make, samples
from helpers.pipeline_texts import FLOAT, mistakes
from helpers.reference import differences

FLOATS = {"to_dtype": {"dtype": "float32", "scale": True}}


@pytest.mark.parametrize("engine", ENGINES)
def test_exact(small_gallery: Path, engine: str) -> None:
    colors = {"p": 1, "num_holes_range": [3, 5], "fill": [9, 8, 7]}
    pixels = {"p": 0.7, "hole_height_range": [5, 4000], "hole_width_range": [0, 30]}
    for steps in (
        [{"coarse_dropout": colors}, {"random_rotate_90": {"p": 1}}],
        [{"coarse_dropout": pixels}],
        [FLOATS, {"coarse_dropout": {"p": 1, "fill": 0.5}}],
    ):
        assert max(d.most for d in differences(small_gallery, *steps, engine=engine)) == 0


def draw(step: CoarseDropout, size: tuple[int, int], count: int = 5000) -> tuple[Any, Any, Any]:
    p = step.sample(np.random.default_rng(0).random((count, step.num_uniforms)))
    anchors, shapes = step.holes(p, np.tile(np.array(size, np.float64), (count, 1)))
    return p, anchors, shapes


def test_holes_are_inside_and_have_the_stated_sizes() -> None:
    step = CoarseDropout(
        p=1, num_holes_range=(2, 4), hole_height_range=(0.1, 0.25), hole_width_range=(10, 20)
    )
    p, anchors, shapes = draw(step, (100, 60))
    assert set(p["count"].tolist()) == {2, 3, 4}
    assert np.abs(np.bincount(p["count"])[2:] / len(p["count"]) - 1 / 3).max() < 0.03
    made = np.arange(4) < p["count"][:, None]
    heights, widths = np.moveaxis(shapes[made], -1, 0)
    assert (heights.min(), heights.max()) == (10, 24)
    assert (widths.min(), widths.max()) == (10, 20)
    assert (shapes[~made] == 0).all()
    assert (anchors >= 0).all()
    ends = (anchors + shapes)[made].max(0)
    assert ends.tolist() == [100, 60]


def test_holes_are_no_larger_than_the_image() -> None:
    step = CoarseDropout(p=1, hole_height_range=(500, 600), hole_width_range=(3, 600))
    _, _, shapes = draw(step, (20, 30), 500)
    assert (shapes[:, 0, 0] == 20).all()
    assert shapes[:, 0, 1].min() >= 3
    assert shapes[:, 0, 1].max() == 30


def test_probability() -> None:
    p, _, _ = draw(CoarseDropout(p=0.3), (20, 30), 20_000)
    assert abs((p["count"] > 0).mean() - 0.3) < 0.015


@pytest.mark.parametrize("engine", ENGINES)
def test_masks_are_filled_where_fill_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    data = make(tmp_path, monkeypatch)
    decode = [{"decode": {"on": "image"}}, {"decode": {"mode": "gray", "on": "mask"}}]
    holes = {"p": 1, "hole_height_range": [5, 9], "hole_width_range": [5, 9]}
    plain = samples(loaded(data, decode, engine=engine))
    for fill, is_filled in (([1, 2, 3], False), ({"image": [1, 2, 3], "mask": 77}, True)):
        step = {"coarse_dropout": {**holes, "fill": fill, "on": ["image", "mask"]}}
        found = samples(loaded(data, [*decode, step], engine=engine))
        for id, sample in found.items():
            hole = (sample["image"] == torch.tensor([1, 2, 3])[:, None, None]).all(0)
            assert 25 <= int(hole.sum()) <= 2 * 81
            expected = plain[id]["mask"].clone()
            if is_filled:
                expected[:, hole] = 77
            assert torch.equal(sample["mask"], expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{hole_height_range: [0.5, 1.5]}",
            "2:39: coarse_dropout.hole_height_range is [0.5, 1.5], but should be [min, max]: two "
            "shares of the side from 0 to below 1, or two whole pixels",
        ),
        ("{num_holes_range: [0, 2]}", "2:38: coarse_dropout.num_holes_range.0 is 0, but should be"),
        ("{num_holes_range: [3, 2]}", "should be [2, 3]: the smaller number first"),
        ("{fill: 256}", "fill is 256, but uint8 holds 0 to 255: write a number between them"),
        (
            "{fill: 0.5}",
            f"but uint8 holds whole numbers from 0 to 255: write one of them, or '{FLOAT}'",
        ),
        ("{fill: [1, 2]}", "fill has 2 numbers, but the image has 3 channels: write one, or 3"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    (found,) = mistakes("decode", f"coarse_dropout: {text}")
    assert message in found
