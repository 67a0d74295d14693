from pathlib import Path
from typing import Any

import numpy as np
import pydantic
import pytest
import torch
from torchvision.transforms.v2 import RandomPerspective as Torchvision
from torchvision.transforms.v2 import functional as F

from gpupipe.pipeline.geometry import perspective_matrix
from gpupipe.pipeline.step import Spec, StepIncompatibleError
from gpupipe.sampling import draws
from gpupipe.steps.random_warps import RandomAffine, RandomPerspective, RandomRotation
from helpers.distributions import MOST, chi_square, largest_gap
from helpers.full_product import IS_FULL
from helpers.pipeline_texts import FLOAT, build, mistakes
from helpers.reference import Difference, differences, emitted, load


def inside_affine(
    d: Difference, step: RandomAffine, key: str, name: str, seed: int = 0, epoch: int = 0
) -> torch.Tensor:
    """Where no neighbour that is blended lies outside the image: where an all-white image stays
    white, less two pixels.
    """
    p = {
        n: v[0]
        for n, v in step.sample(
            draws.uniform(seed, epoch, np.array([d.id]), draws.stream(key), step.num_uniforms)
        ).items()
    }
    white = step.torch(torch.full((3, *_input(name)), 255, dtype=torch.uint8), p)
    shrunk = -torch.nn.functional.max_pool2d(-(white[:1] == 255).float()[None], 5, 1, 2)[0]
    return shrunk[0] > 0


def _input(name: str) -> tuple[int, int]:
    width, height = name.rsplit("_", maxsplit=1)[-1].removesuffix(".png").split("x")
    return int(height), int(width)


@pytest.mark.parametrize(
    "parameters",
    [
        {"degrees": 5, "translate": [0.1, 0.1], "scale": [0.5, 2.0]},
        {"degrees": [30, 80], "shear": 10},
        {"degrees": 0, "shear": [-10, 10, -20, 20], "fill": [10, 200, 30]},
        {"degrees": 45, "center": [20.5, 33]},
        {"degrees": 0, "translate": [0.3, 0.2]},
    ],
    ids=str,
)
def test_bilinear_is_within_a_level_inside_the_border_of_affine(
    small_gallery: Path, parameters: dict[str, Any]
) -> None:
    parameters = {**parameters, "interpolation": "bilinear"}
    step = RandomAffine.model_validate(parameters)
    with load(small_gallery) as loader:
        names = {i: loader.index.location(i) for i in range(len(loader.index))}
    covered = 0.0
    for d in differences(small_gallery, {"random_affine": parameters}):
        within = inside_affine(d, step, "random_affine", names[d.id])
        covered += float(within.double().mean())
        assert not within.any() or float(d.levels[:, within].max()) <= 1
        assert d.mean < 0.5
    assert covered > 3  # of 10 images: the check must have looked at pixels


def test_nearest_takes_the_same_pixels_of_affine(small_gallery: Path) -> None:
    found = differences(
        small_gallery,
        {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "scale": [0.5, 2.0]}},
    )
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.001


def test_parameters_lie_in_their_ranges() -> None:
    step = RandomAffine.model_validate(
        {"degrees": [-5, 15], "translate": [0.1, 0.2], "scale": [0.5, 2.0], "shear": [1, 2, 3, 4]}
    )
    p = step.sample(np.random.default_rng(0).random((5000, step.num_uniforms)))
    for name, low, high in [("angle", -5, 15), ("scale", 0.5, 2.0)]:
        assert low <= p[name].min() < low + 0.05 * (high - low)
        assert high >= p[name].max() > high - 0.05 * (high - low)
    assert (np.abs(p["translate"]).max(0) <= [0.1, 0.2]).all()
    assert (np.abs(p["translate"]).max(0) > [0.099, 0.198]).all()
    assert (p["shear"] >= [1, 3]).all()
    assert (p["shear"] <= [2, 4]).all()


def test_short_forms_mean_what_they_mean_in_torchvision() -> None:
    step = RandomAffine.model_validate({"degrees": 5, "shear": 7})
    assert (step.degrees, step.shear) == ((-5, 5), (-7, 7, 0, 0))
    assert RandomAffine.model_validate({"degrees": 0, "shear": [1, 2]}).shear == (1, 2, 0, 0)
    assert (step.interpolation, step.fill, step.translate, step.scale) == (
        "nearest",
        (0.0,),
        None,
        None,
    )


def params(step: RandomPerspective, id: int, epoch: int = 0) -> dict[str, Any]:
    uniform = draws.uniform(
        0, epoch, np.array([id]), draws.stream("random_perspective"), step.num_uniforms
    )
    return {name: values[0] for name, values in step.sample(uniform).items()}


def inside_perspective(step: RandomPerspective, d: Difference) -> torch.Tensor:
    """Where no neighbour that is blended lies outside the image: where an all-white image stays
    white, less two pixels.
    """
    white = step.torch(torch.full_like(d.expected, 255), params(step, d.id))
    return -torch.nn.functional.max_pool2d(-(white[:1] == 255).float()[None], 5, 1, 2)[0, 0] > 0


@pytest.mark.parametrize(
    "parameters",
    [{}, {"distortion_scale": 0.2}, {"distortion_scale": 0.8, "fill": [10, 200, 30]}],
    ids=str,
)
def test_bilinear_is_within_a_level_inside_the_border_of_perspective(
    gallery: Path, parameters: dict[str, Any]
) -> None:
    """At the border DALI blends with `fill`, and torchvision weights the image twice."""
    step = RandomPerspective(p=1, **parameters)
    covered = 0.0
    for d in differences(gallery, {"random_perspective": {"p": 1, **parameters}}):
        within = inside_perspective(step, d)
        covered += float(within.double().mean())
        assert float(d.levels[:, within].max()) <= 1
        assert d.mean < 0.5
    assert covered > 3, "of 10 images: the check must have looked at pixels"


def test_floats_agree_inside_the_border(gallery: Path) -> None:
    """In levels of 0 to 255: a CPU's weights between pixels have five bits."""
    steps = [{"to_dtype": {"dtype": "float32", "scale": True}}, {"random_perspective": {"p": 1}}]
    step = RandomPerspective(p=1)
    for d in differences(gallery, *steps):
        white = step.torch(torch.ones_like(d.expected), params(step, d.id))
        blend = -torch.nn.functional.max_pool2d(-(white[:1] > 0.999).float()[None], 5, 1, 2)[0, 0]
        assert 255 * float(d.levels[:, blend > 0].max()) < 8
        assert 255 * d.mean < 0.5


@pytest.mark.parametrize(("mode", "most"), [("rgb", 0), ("gray", 1)])
def test_nearest_takes_the_same_pixels_of_perspective(gallery: Path, mode: str, most: int) -> None:
    """Gray levels differ by one after decode."""
    steps = {"random_perspective": {"p": 1, "interpolation": "nearest", "fill": 77}}
    found = differences(gallery, steps, decode={"mode": mode})
    assert max(float((d.levels > most).double().mean()) for d in found) < 0.001


def test_samples_without_a_transform_are_left_alone(gallery: Path) -> None:
    step = RandomPerspective(p=0.5)
    plain = {d.id: d.image for d in differences(gallery)}
    found = differences(gallery, {"random_perspective": {}})
    runs = {d.id: bool(params(step, d.id)["runs"]) for d in found}
    assert 0 < sum(runs.values()) < len(runs)
    for d in found:
        assert torch.equal(d.image, plain[d.id]) == (not runs[d.id])


@pytest.mark.parametrize(("p", "runs"), [(0, 0), (1, 1)])
def test_p_at_its_ends(p: float, runs: int) -> None:
    step = RandomPerspective(p=p)
    drawn = step.sample(np.random.default_rng(0).random((1000, step.num_uniforms)))["runs"]
    assert (drawn == runs).all()


def test_corners_are_distributed_as_torchvisions() -> None:
    """20,000 draws of each: chi-square over the positions of each coordinate of each corner."""
    height, width, count = 10, 13, 20_000
    step = RandomPerspective(distortion_scale=0.6)
    p = step.sample(np.random.default_rng(0).random((count, step.num_uniforms)))
    assert abs(p["runs"].mean() - 0.5) < 0.02
    start, end = step.corners(p, np.array([width, height], np.float64))
    assert start.tolist() == [[0, 0], [12, 0], [12, 9], [0, 9]]
    # torchvision: int(0.6 * 5) + 1 = 4 rows, int(0.6 * 6) + 1 = 4 columns.
    for corner, (x, y) in enumerate([(0, 0), (9, 0), (9, 6), (0, 6)]):
        for axis, first in enumerate((x, y)):
            values, counts = np.unique(end[:, corner, axis], return_counts=True)
            assert values.tolist() == [first, first + 1, first + 2, first + 3]
            assert chi_square(counts) < MOST
    torch.manual_seed(0)
    transform, image = Torchvision(0.6), torch.zeros(3, height, width)
    theirs = np.array(
        [transform.make_params([image])["coefficients"] for _ in range(2000)], np.float64
    )
    ours = perspective_matrix(start, end).reshape(-1, 9)[:, :8]
    for n in range(8):
        assert largest_gap(ours[:, n].round(5), theirs[:, n].round(5)) < 2.2


def test_half_of_an_odd_side_is_rounded_down() -> None:
    """As torchvision: int(0.31 * (13 // 2)) + 1 = 2 positions for each coordinate."""
    step = RandomPerspective(distortion_scale=0.31)
    _, end = step.corners({"moves": np.full((4, 2), 0.999)}, np.array([13.0, 13.0]))
    assert end.tolist() == [[1, 1], [12, 1], [12, 12], [1, 12]]


@pytest.mark.parametrize("size", [(1, 1), (1, 40), (40, 1), (2, 2), (3, 2)])
def test_images_of_a_few_pixels(size: tuple[int, int]) -> None:
    """torchvision's equations have no solution where a side has one pixel: they are left alone."""
    step = RandomPerspective(p=1, distortion_scale=1, fill=(9.0,))
    p = step.sample(np.random.default_rng(0).random((50, step.num_uniforms)))
    image = torch.arange(3 * size[0] * size[1], dtype=torch.uint8).reshape(3, *size)
    for n in range(50):
        moved = step.torch(image, {name: values[n] for name, values in p.items()})
        assert 1 not in size or torch.equal(moved, image)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{distortion_scale: 1.5}",
            "2:42: random_perspective.distortion_scale is 1.5, but should be at most 1",
        ),
        (
            "{distortion_scale: -0.5}",
            "2:42: random_perspective.distortion_scale is -0.5, but should be at least 0",
        ),
        ("{p: 2}", "2:27: random_perspective.p is 2, but should be at most 1"),
        (
            "{interpolation: bicubic}",
            "2:39: random_perspective.interpolation is 'bicubic', but should be 'nearest' or "
            "'bilinear'",
        ),
        (
            "{fill: [1, 2]}",
            "2:3: random_perspective cannot stand here: fill has 2 numbers, but the image has 3 "
            "channels: write one, or 3",
        ),
    ],
)
def test_mistakes(text: str, message: str) -> None:
    assert mistakes("decode", f"random_perspective: {text}") == [message]


@pytest.mark.parametrize(("fill", "values"), [(1, "usual"), (200, "filled")])
def test_a_fill_above_1_in_floats_is_known_to_later_steps(fill: int, values: str) -> None:
    built = build("decode", FLOAT, f"random_perspective: {{fill: {fill}}}")
    assert built.output_spec.pixels.values == values


def test_other_inputs_are_refused() -> None:
    for spec in (Spec.of_array("int64", (3, 8, 8), "CHW"), Spec.of_array("uint8", (9,), "L")):
        with pytest.raises(StepIncompatibleError):
            RandomPerspective().infer_spec(spec)
    with pytest.raises(pydantic.ValidationError):
        RandomPerspective(distortion_scale=1.01)


@pytest.mark.parametrize(
    "parameters",
    [{"degrees": 30}, {"degrees": [100, 170], "fill": 99}, {"degrees": 20, "center": [10, 200]}],
    ids=str,
)
def test_bilinear(gallery: Path, parameters: dict[str, object]) -> None:
    """Away from the image's own edge (where each blends with the fill in its way) no pixel is more
    than a level off.
    """
    for d in differences(gallery, {"random_rotation": {**parameters, "interpolation": "bilinear"}}):
        assert float((d.levels > 1).double().mean()) < 0.012
        assert d.mean < 0.4


def test_nearest_takes_the_same_pixels_of_rotation(gallery: Path) -> None:
    found = differences(gallery, {"random_rotation": {"degrees": 30}})
    assert max(float((d.levels > 0).double().mean()) for d in found) < 0.001


@pytest.mark.parametrize("degrees", [20, [90, 90], [180, 180], [0, 0], [45, 50]], ids=str)
def test_expand_has_torchvision_s_size_and_pixels(gallery: Path, degrees: object) -> None:
    for d in differences(
        gallery,
        {"random_rotation": {"degrees": degrees, "expand": True, "interpolation": "bilinear"}},
    ):
        assert float((d.levels > 1).double().mean()) < 0.02


@pytest.mark.parametrize("center", [None, (30.0, 41.5)])
def test_expand_makes_torchvision_s_size(center: tuple[float, float] | None) -> None:
    """Also where rounding decides, and around another centre than the image's."""
    step = RandomRotation(degrees=(-180, 180), expand=True, center=center)
    count = 500 if IS_FULL else 120
    p = step.sample(np.random.default_rng(0).random((count, 1)))
    p["angle"][:9] = [0, 90, 180, -90, 270, 45, 30, 60, 135]
    p = p | step.model_copy(update={"degrees": (0, 1)}).sample(p["angle"][:, None])
    for width, height in [(200, 100), (7, 4), (333, 500), (1, 9)]:
        sizes = step.expanded(p, np.tile([float(width), float(height)], (count, 1)))
        image = torch.zeros(1, height, width, dtype=torch.uint8)
        how = {"expand": True, "center": list(center) if center else None}
        expected = [F.rotate(image, float(a), **how).shape[:0:-1] for a in p["angle"]]
        assert sizes.tolist() == [list(size) for size in expected]


def test_angles() -> None:
    angles = RandomRotation.model_validate({"degrees": [10, 20]}).sample(
        np.random.default_rng(0).random((1000, 1))
    )["angle"]
    assert 10 <= angles.min() < 10.1
    assert 19.9 < angles.max() <= 20


def test_expand_makes_the_size_unknown() -> None:
    known = Spec.of_image(3, 10, 20)
    assert RandomRotation.model_validate({"degrees": 5}).infer_spec(known).size == (10, 20)
    assert (
        RandomRotation.model_validate({"degrees": 5, "expand": True}).infer_spec(known).size is None
    )


@pytest.mark.parametrize(
    "step",
    [
        {"random_affine": {"degrees": 5}},
        {"random_perspective": {}},
        {"random_rotation": {"degrees": 5}},
    ],
    ids=str,
)
def test_on_the_cpu_each_is_a_perspective_warp(small_gallery: Path, step: dict[str, Any]) -> None:
    with load(small_gallery, step) as loader:
        assert emitted(loader) == ["decoders.image", "experimental.warp_perspective", "transpose"]
