from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

import gpupipe
from gpupipe.pipeline.step import Spec
from gpupipe.steps.random_resizing import RandomResize, RandomShortestSize, ScaleJitter
from helpers.arrays import ENGINES
from helpers.color_differences import as_gray
from helpers.distributions import MOST, chi_square, largest_gap
from helpers.pipeline_texts import mistakes
from helpers.reference import differences, emitted, load


@pytest.mark.parametrize(("mode", "most"), [("rgb", 1), ("gray", 1)])
def test_pixels_are_torchvisions_of_resize(gallery: Path, mode: str, most: int) -> None:
    parameters = {"random_resize": {"min_size": 100, "max_size": 300}}
    root = as_gray(gallery) if mode == "gray" else gallery
    found = differences(root, parameters, decode={"mode": mode})
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < 0.2
    assert max(float(d.levels[:, 6:-6, 6:-6].max()) for d in found) <= most
    assert len({d.image.shape for d in found}) == len(found)


@pytest.mark.parametrize(
    ("parameters", "most"),
    [({"interpolation": "nearest"}, 0), ({"antialias": False}, 1)],
    ids=str,
)
def test_other_interpolations(gallery: Path, parameters: dict[str, Any], most: int) -> None:
    """Nearest pixels differ only where float32 and float64 disagree about a whole number.

    That may be two of about a hundred rows and columns.
    """
    sizes = {"min_size": 100, "max_size": 300}
    found = differences(gallery, {"random_resize": sizes | parameters})
    assert max(float((d.levels > most).double().mean()) for d in found) < 0.02


def test_floats(gallery: Path) -> None:
    steps = [
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"random_resize": {"min_size": 100, "max_size": 300}},
    ]
    found = differences(gallery, *steps)
    assert max(255 * float(d.levels[:, 6:-6, 6:-6].max()) for d in found) < 0.1


def test_sizes_are_those_of_torchvisions_resize() -> None:
    step = RandomResize(min_size=3, max_size=90)
    p = step.sample(np.random.default_rng(0).random((60, 1)))
    for size in [(375, 500), (500, 333), (1, 1), (7, 5), (31, 49)]:
        shapes = step.shape(p, np.array(size, np.float64))
        for short, shape in zip(p["short"], shapes, strict=True):
            expected = F.resize(torch.zeros(1, *size), [int(short)]).shape[1:]
            assert shape.tolist() == list(expected)


def test_all_sizes_but_the_last_are_equally_probable() -> None:
    """torchvision draws with randint(min_size, max_size), which leaves out max_size."""
    step = RandomResize(min_size=10, max_size=17)
    drawn = step.sample(np.random.default_rng(0).random((20_000, 1)))["short"]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == list(range(10, 17))
    assert chi_square(counts) < MOST
    transform, image = v2.RandomResize(10, 17), torch.zeros(3, 5, 5)
    theirs = {transform.make_params([image])["size"][0] for _ in range(500)}
    assert theirs == set(range(10, 17))


def test_the_least_size_is_known_to_later_steps_of_resize(gallery: Path) -> None:
    spec = Spec.of_image(3, 40, 50)
    made = RandomResize(min_size=20, max_size=30).infer_spec(spec)
    assert (made.size, made.at_least) == (None, (20, 20))
    steps = [{"random_resize": {"min_size": 200, "max_size": 300}}, {"random_crop": {"size": 200}}]
    with load(gallery, *steps) as loader:
        assert emitted(loader)[-2:] == ["resize", "transpose"], "one operator for both"


def test_a_step_must_make_sizes_equal(faces: Path) -> None:
    resize = {"random_resize": {"min_size": 40, "max_size": 60}}
    for options in ENGINES.values():
        with (
            load(faces, resize, batch_size=8, device="cpu", **options) as loader,
            pytest.raises(gpupipe.ShapeError, match=r"differ in size .*: .*resize with size"),
        ):
            list(loader)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{min_size: 20, max_size: 10}",
            "2:18: random_resize: max_size is 10, but must be larger than min_size, 20: sizes are "
            "drawn from min_size to max_size - 1",
        ),
        (
            "{min_size: 20, max_size: 20}",
            "2:18: random_resize: max_size is 20, but must be larger than min_size, 20: sizes are "
            "drawn from min_size to max_size - 1",
        ),
        (
            "{min_size: 20}",
            "2:3: random_resize.max_size: missing; write 'max_size: ...' (the length of the "
            "shorter side is less than this, in pixels)",
        ),
        (
            "{min_size: 0, max_size: 5}",
            "2:29: random_resize.min_size is 0, but should be at least 1",
        ),
        (
            "{min_size: 2, max_size: 5, interpolation: bicubic, antialias: false}",
            "2:18: random_resize: bicubic without antialias differs between engines: set "
            "antialias: true, or take bilinear",
        ),
    ],
)
def test_mistakes_of_resize(text: str, message: str) -> None:
    assert mistakes("decode", f"random_resize: {text}") == [message]


@pytest.mark.parametrize(
    "parameters", [{"min_size": [100, 150, 200]}, {"min_size": 200, "max_size": 256}], ids=str
)
def test_pixels_are_torchvisions_of_shortest_size(
    gallery: Path, parameters: dict[str, Any]
) -> None:
    found = differences(gallery, {"random_shortest_size": parameters})
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < 0.2
    assert max(float(d.levels[:, 6:-6, 6:-6].max()) for d in found) <= 1


def test_nearest_takes_the_same_pixels_of_shortest_size(gallery: Path) -> None:
    parameters = {"min_size": [100, 150], "interpolation": "nearest"}
    found = differences(gallery, {"random_shortest_size": parameters})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.01


@pytest.mark.parametrize("max_size", [None, 150])
def test_each_sample_of_a_batch_gets_the_size_that_it_gets_alone(max_size: int | None) -> None:
    step = RandomShortestSize(min_size=(50, 70, 90), max_size=max_size)
    sizes = np.array([[375.0, 500.0], [500.0, 100.0], [49.0, 49.0]])
    lengths = np.array([50.0, 90.0, 70.0])
    alone = [step.shape({"short": s}, size) for s, size in zip(lengths, sizes, strict=True)]
    assert step.shape({"short": lengths}, sizes).tolist() == np.stack(alone).tolist()


@pytest.mark.parametrize("max_size", [None, 150])
def test_sizes_are_those_of_torchvision(max_size: int | None) -> None:
    """torchvision may round a length down to one less: 49 * (1 / 49) is less than 1."""
    image_sizes = [(375, 500), (500, 333), (49, 49), (49, 300), (98, 120), (7, 5)]
    for length in (7, 49, 97, 100, 123):
        step = RandomShortestSize(min_size=length, max_size=max_size)
        p = step.sample(np.zeros((1, 1)))
        transform = v2.RandomShortestSize(length, max_size)
        for size in image_sizes:
            (shape,) = step.shape(p, np.array([size], np.float64))
            expected = transform.make_params([torch.zeros(1, *size)])["size"]
            assert tuple(shape) == expected
            assert shape.min() >= step.min_side


def test_a_side_has_at_least_one_pixel_of_shortest_size() -> None:
    """torchvision fails here."""
    step = RandomShortestSize(min_size=1)
    p = {"short": np.float64(1.0)}
    assert step.shape(p, np.array([49.0, 49.0])).tolist() == [1, 1]
    assert step.torch(torch.zeros(3, 49, 49), p).shape == (3, 1, 1)


def test_all_lengths_are_equally_probable() -> None:
    lengths = list(range(480, 801, 32))
    step = RandomShortestSize(min_size=lengths, max_size=1333)
    drawn = step.sample(np.random.default_rng(0).random((20_000, 1)))["short"]
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == lengths
    assert chi_square(counts) < MOST


def test_the_least_size_is_known_to_later_steps_of_shortest_size() -> None:
    spec = Spec.of_image(3, 40, 50)
    least = {
        max_size: RandomShortestSize(min_size=[20, 30], max_size=max_size).infer_spec(spec).at_least
        for max_size in (None, 40)
    }
    assert least == {None: (19, 19), 40: (1, 1)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{min_size: [20, 30], max_size: 25}",
            "2:25: random_shortest_size: min_size has 30, but the longer side is at most "
            "max_size, 25: make max_size larger",
        ),
        (
            "{min_size: []}",
            "2:36: random_shortest_size.min_size is [], but should be a number of pixels, or a "
            "list of numbers",
        ),
        (
            "{min_size: [20, 0]}",
            "2:41: random_shortest_size.min_size.1 is 0, but should be at least 1",
        ),
        (
            "{min_size: big}",
            "2:36: random_shortest_size.min_size is 'big', but should be a number of pixels, or a "
            "list of numbers",
        ),
    ],
)
def test_mistakes_of_shortest_size(text: str, message: str) -> None:
    assert mistakes("decode", f"random_shortest_size: {text}") == [message]


@pytest.mark.parametrize(
    "parameters",
    [{"scale_range": [0.5, 1.5]}, {"scale_range": [1, 1], "antialias": False}],
    ids=str,
)
def test_pixels_are_torchvisions_of_scale_jitter(gallery: Path, parameters: dict[str, Any]) -> None:
    """At a factor of 2/3, a quarter of the pixels without antialias are rounded the other way."""
    found = differences(gallery, {"scale_jitter": {"target_size": [200, 300], **parameters}})
    assert max(d.mean for d in found) < 0.35
    assert max(abs(d.offset) for d in found) < (0.2 if parameters.get("antialias", True) else 0.3)
    assert max(float(d.levels[:, 6:-6, 6:-6].max()) for d in found) <= 1


def test_nearest_takes_the_same_pixels_of_scale_jitter(gallery: Path) -> None:
    parameters = {"target_size": [200, 300], "interpolation": "nearest"}
    found = differences(gallery, {"scale_jitter": parameters})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.01


def test_the_first_number_of_the_target_is_the_width() -> None:
    """As torchvision computes it."""
    step = ScaleJitter(target_size=(100, 1000), scale_range=(1, 1))
    p = step.sample(np.zeros((1, 1)))
    (shape,) = step.shape(p, np.array([[40.0, 50.0]]))
    made = v2.ScaleJitter((100, 1000), (1, 1)).make_params([torch.zeros(3, 40, 50)])["size"]
    assert tuple(shape) == made == (80, 100)


@pytest.mark.parametrize("size", [(375, 500), (500, 333), (7, 300)])
def test_distribution_is_torchvisions(size: tuple[int, int]) -> None:
    step = ScaleJitter(target_size=(600, 500))
    p = step.sample(np.random.default_rng(0).random((20_000, 1)))
    ours = step.shape(p, np.array(size, np.float64))
    torch.manual_seed(0)
    transform, image = v2.ScaleJitter((600, 500)), torch.zeros(3, *size)
    theirs = np.array([transform.make_params([image])["size"] for _ in range(3000)])
    for axis in range(2):
        assert largest_gap(ours[:, axis], np.maximum(theirs[:, axis], 1)) < 2.2


def test_a_side_has_at_least_one_pixel_of_scale_jitter() -> None:
    """torchvision fails here."""
    step = ScaleJitter(target_size=(10, 10), scale_range=(0.01, 0.01))
    p = {"scale": np.float64(0.01)}
    assert step.torch(torch.zeros(3, 40, 50), p).shape == (3, 1, 1)
    spec = Spec.of_image(3, 40, 50)
    assert (step.infer_spec(spec).size, step.infer_spec(spec).at_least) == (None, (1, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{target_size: 100}",
            "2:31: scale_jitter.target_size is 100, but should be [width, height] in pixels",
        ),
        (
            "{target_size: [9, 9], scale_range: [0, 1]}",
            "2:53: scale_jitter.scale_range.0 is 0, but should be above 0",
        ),
        (
            "{target_size: [9, 9], scale_range: [2, 1]}",
            "2:52: scale_jitter.scale_range is [2, 1], but should be [1, 2]: the smaller number "
            "first",
        ),
    ],
)
def test_mistakes_of_scale_jitter(text: str, message: str) -> None:
    assert mistakes("decode", f"scale_jitter: {text}") == [message]
