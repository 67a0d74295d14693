from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import RandomZoomOut as Torchvision
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_zoom_out import RandomZoomOut
from helpers.arrays import ENGINES, both, exactly, numbers, saved
from helpers.distributions import largest_gap
from helpers.pipeline_texts import mistakes
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize(
    "parameters",
    [{}, {"fill": [7, 8, 9], "p": 1, "side_range": [1, 1.5]}, {"p": 1, "side_range": [1, 1]}],
    ids=str,
)
def test_exact(small_gallery: Path, parameters: dict[str, Any]) -> None:
    assert max(d.most for d in differences(small_gallery, {"random_zoom_out": parameters})) == 0


def test_floats_are_exact_and_gray_images_as_after_decode(small_gallery: Path) -> None:
    """Scaled floats differ by their last bit, gray levels by one."""
    steps = [{"to_dtype": {"dtype": "float32", "scale": True}}, {"random_zoom_out": {"fill": 0.3}}]
    for mode, most in (("rgb", 1e-6), ("gray", 1.01 / 255)):
        assert (
            max(d.most for d in differences(small_gallery, *steps, decode={"mode": mode})) <= most
        )


@pytest.mark.parametrize(
    ("layout", "dtype"), [("CHW", "uint8"), ("HWC", "int64"), ("HW", "float64")]
)
def test_arrays_are_exact(tmp_path: Path, layout: str, dtype: str) -> None:
    shape = {"CHW": (3, 9, 12), "HWC": (9, 12, 3), "HW": (9, 12)}[layout]
    data = saved(tmp_path, numbers(dtype, (5, *shape)), layout=layout)
    exactly(both(data, [{"random_zoom_out": {"fill": 3}}, {"center_crop": {"size": 20}}]))


def test_the_canvas_is_torchvisions_padding() -> None:
    """For torchvision's make_params, with its draws replaced by the step's."""
    step = RandomZoomOut(side_range=(1.0, 3.0), p=1)
    p = step.sample(np.random.default_rng(0).random((300, step.num_uniforms)))
    for height, width in [(375, 500), (1, 1), (7, 5)]:
        anchor, shape = step.canvas(p, np.array([height, width], np.float64))
        for n in range(300):
            r = float(p["factor"][n, 0])
            canvas_width, canvas_height = int(width * r), int(height * r)
            top = int((canvas_height - height) * p["position"][n, 0])
            left = int((canvas_width - width) * p["position"][n, 1])
            assert shape[n].tolist() == [canvas_height, canvas_width]
            assert anchor[n].tolist() == [-top, -left]


def test_the_reference_is_torchvisions_pad() -> None:
    step = RandomZoomOut(fill=(3.0, 4.0, 5.0), p=1)
    p = step.sample(np.random.default_rng(1).random((1, step.num_uniforms)))
    p = {name: values[0] for name, values in p.items()}
    image = torch.arange(90, dtype=torch.uint8).reshape(3, 5, 6)
    (top, left), (height, width) = (-a for a in step.canvas(p, np.array([5.0, 6.0])))
    padding = [int(n) for n in (left, top, -width - left - 6, -height - top - 5)]
    assert torch.equal(step.torch(image, p), F.pad(image, padding, fill=[3, 4, 5]))


def test_distribution_is_torchvisions() -> None:
    step, size = RandomZoomOut(), np.array([40.0, 50.0])
    p = step.sample(np.random.default_rng(0).random((20_000, step.num_uniforms)))
    assert abs(p["runs"].mean() - 0.5) < 0.015
    anchor, shape = step.canvas(p, size)
    torch.manual_seed(0)
    transform, image = Torchvision(), torch.zeros(3, 40, 50)
    theirs = np.array([transform.make_params([image])["padding"] for _ in range(3000)])
    left, top, right, bottom = theirs.T
    for mine, other in [
        (-anchor[:, 0], top),
        (-anchor[:, 1], left),
        (shape[:, 0] + anchor[:, 0] - 40, bottom),
        (shape[:, 1] + anchor[:, 1] - 50, right),
    ]:
        assert largest_gap(mine, other) < 2.2


@pytest.mark.parametrize(("p", "runs"), [(0, 0), (1, 1)])
def test_p_at_its_ends(p: float, runs: int) -> None:
    step = RandomZoomOut(p=p)
    drawn = step.sample(np.random.default_rng(0).random((1000, step.num_uniforms)))["runs"]
    assert (drawn == runs).all()


def test_it_is_one_operator(small_gallery: Path) -> None:
    with load(small_gallery, "random_zoom_out") as loader:
        assert emitted(loader) == ["decoders.image", "slice", "transpose"]


def test_a_step_must_make_sizes_equal(faces: Path) -> None:
    """Even for images of one size."""
    spec = Spec.of_image(3, 40, 50)
    made = RandomZoomOut().infer_spec(spec)
    assert (made.size, made.at_least) == (None, (40, 50))
    for options in ENGINES.values():
        with (
            load(faces, "random_zoom_out", batch_size=8, device="cpu", **options) as loader,
            pytest.raises(gpupipe.ShapeError, match=r"differ in size .*: .*resize with size"),
        ):
            list(loader)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{side_range: [0.5, 2]}",
            "2:34: random_zoom_out.side_range.0 is 0.5, but should be at least 1",
        ),
        (
            "{side_range: 2}",
            "2:33: random_zoom_out.side_range is 2, but should be [min, max], both at least 1",
        ),
        (
            "{side_range: [3, 2]}",
            "2:33: random_zoom_out.side_range is [3, 2], but should be [2, 3]: the smaller number "
            "first",
        ),
        (
            "{fill: 300}",
            "2:3: random_zoom_out cannot stand here: fill is 300, but uint8 holds 0 to 255: write "
            "a number between them",
        ),
        ("{p: -1}", "2:24: random_zoom_out.p is -1, but should be at least 0"),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert mistakes("decode", f"random_zoom_out: {text}") == [message]
