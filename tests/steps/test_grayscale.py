from pathlib import Path

import numpy as np
import pydantic
import pytest
import torch
from nvidia.dali import Pipeline, backend, fn, types
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from gpupipe.dataset.spec import Spec
from gpupipe.engines.dali.operators.image import ImageTracer
from gpupipe.engines.dali.operators.subgraph import Subgraph
from gpupipe.pipeline.step import StepIncompatibleError
from gpupipe.steps.grayscale import Grayscale, RandomGrayscale, Rgb
from helpers.color_differences import EXACT, compared, drawn, is_share, most
from helpers.reference import Difference, differences


@pytest.mark.parametrize("channels", [1, 3])
def test_within_a_level_and_truncated_as_torchvision_does(
    small_gallery: Path, channels: int
) -> None:
    found = differences(small_gallery, {"grayscale": {"num_output_channels": channels}})
    assert found[0].image.shape[0] == channels
    assert max(d.most for d in found) <= 1
    assert max(d.mean for d in found) < 0.05


@pytest.mark.parametrize("channels", [1, 3])
def test_of_a_gray_image(small_gallery: Path, channels: int) -> None:
    steps = {"grayscale": {}}, {"grayscale": {"num_output_channels": channels}}
    found = differences(small_gallery, *steps)
    assert found[0].image.shape[0] == channels
    assert max(d.most for d in found) <= 1


def test_of_floats(small_gallery: Path) -> None:
    found = differences(
        small_gallery, {"to_dtype": {"dtype": "float32", "scale": True}}, "grayscale"
    )
    assert max(d.most for d in found) < 1e-5


def test_of_floats_as_three_channels(small_gallery: Path) -> None:
    steps = (
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"grayscale": {"num_output_channels": 3}},
    )
    found = differences(small_gallery, *steps)
    assert found[0].image.shape[0] == 3
    assert max(d.most for d in found) < 1e-5


DECODED = [
    (Spec.of_image(3), 1),
    (Spec.of_image(3), 3),
    (Spec.of_image(1), 3),
    (Spec.of_image(3, dtype="float32"), 3),
]


def graph_for_gpu(given: Spec, channels: int) -> Subgraph:
    image = ImageTracer(np.ones((1, 2)), "gpu")
    image.spec, image.step = given, "grayscale"
    Grayscale(num_output_channels=channels).lower(image, {})
    return image.subgraph()


@pytest.mark.parametrize(("given", "channels"), DECODED, ids=str)
def test_on_a_gpu_it_is_one_operator_that_launches_one_kernel_a_batch(
    given: Spec, channels: int
) -> None:
    """color_space_conversion launches one for each sample."""
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        node = fn.external_source(
            dtype=types.to_dali_type(given.dtype), ndim=3, layout="HWC", device="gpu"
        )
        graph = graph_for_gpu(given, channels)
        made = graph.add_to(node, iter(()))
    assert [(e.op, e.device) for e in graph.emitted] == [("coord_transform", "gpu")]
    assert made.device == "gpu"
    assert "gpu" in backend.GetSchema("CoordTransform").GetSupportedBackends()


@pytest.mark.parametrize(("given", "channels"), DECODED, ids=str)
def test_what_runs_on_a_gpu_makes_the_pixels_of_torchvision(given: Spec, channels: int) -> None:
    """The same operator, here on the CPU."""
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (4, 60, 50, given.channels), np.uint8)
    pixels = pixels if given.dtype == "uint8" else (pixels / 255).astype(np.float32)
    pipe = Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipe:
        node = fn.external_source(
            lambda: list(pixels), dtype=types.to_dali_type(given.dtype), ndim=3, layout="HWC"
        )
        pipe.set_outputs(graph_for_gpu(given, channels).add_to(node, iter(())))
    found = torch.from_numpy(pipe.run()[0].as_array()).permute(0, 3, 1, 2)
    expected = F.rgb_to_grayscale(torch.from_numpy(pixels).permute(0, 3, 1, 2), channels)
    assert found.shape == expected.shape
    most = float((found.double() - expected.double()).abs().max())
    assert most <= (1 if given.dtype == "uint8" else 1e-6)


def test_a_matrix_per_sample() -> None:
    """What a step with drawn colors lowers onto: one operator, which is fed a matrix a sample."""
    matrices = np.array([np.eye(3), np.eye(3)[::-1], np.full((3, 3), 1 / 3)])
    pixels = np.random.default_rng(3).integers(0, 256, (3, 8, 9, 3), np.uint8)
    pipe = Pipeline(batch_size=3, num_threads=1, device_id=None)
    with pipe:
        node = fn.external_source(lambda: list(pixels), dtype=types.UINT8, ndim=3, layout="HWC")
        feed = fn.external_source(
            lambda: list(matrices.astype(np.float32)), dtype=types.FLOAT, ndim=2
        )
        image = ImageTracer(np.ones((3, 2)), "cpu")
        image.spec = Spec.of_image(3)
        image.color_matrix(matrices)
        pipe.set_outputs(image.subgraph().add_to(node, iter([feed])))
    found = pipe.run()[0].as_array()
    assert [e.op for e in image.subgraph().emitted] == ["coord_transform"]
    expected = np.einsum("bij,bhwj->bhwi", matrices, pixels.astype(np.float64)).astype(np.uint8)
    assert np.abs(found.astype(int) - expected).max() <= 1
    assert (found[:2] == expected[:2]).all()


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
def test_levels_are_within_one_of_torchvisions(small_gallery: Path, gray: bool) -> None:
    assert most(small_gallery, "random_grayscale", gray=gray, p=1) <= 1


def test_floats_are_torchvisions(small_gallery: Path) -> None:
    assert most(small_gallery, "random_grayscale", "float32", p=1) <= EXACT


def test_the_channels_stay_three_and_become_equal(small_gallery: Path) -> None:
    for d in compared(small_gallery, "random_grayscale", p=1):
        assert d.image.shape[0] == 3
        assert bool((d.image == d.image[:1]).all())


def test_a_share_of_the_samples_is_converted() -> None:
    assert is_share(drawn("random_grayscale", p=0.3)["runs"], 0.3)
    assert RandomGrayscale().p == v2.RandomGrayscale().p == 0.1


def test_a_probability_above_1_is_refused() -> None:
    with pytest.raises(pydantic.ValidationError, match="less than or equal to 1"):
        RandomGrayscale(p=1.5)


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "gray"])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_pixels_are_torchvisions(small_gallery: Path, dtype: str, gray: bool) -> None:
    found: list[Difference] = compared(small_gallery, "rgb", dtype, gray)
    assert max(d.most for d in found) == 0
    assert all(d.image.shape[0] == 3 for d in found)
    assert all(bool((d.image == d.image[:1]).all()) == gray for d in found)


def test_normalized_numbers_are_taken() -> None:
    """It copies numbers, whatever they are."""
    spec = Spec.of_image(1, dtype="float32").with_values("normalized")
    assert Rgb().infer_spec(spec).channels == 3


@pytest.mark.parametrize("shape", [(4, 8, 8), (2, 8, 8)])
def test_other_channels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(StepIncompatibleError, match="works on 1 or 3 channels"):
        Rgb().infer_spec(Spec.of_array("uint8", shape, "CHW"))


def test_an_array_without_channels_is_refused() -> None:
    with pytest.raises(StepIncompatibleError, match="no axis for them"):
        Rgb().infer_spec(Spec.of_array("uint8", (8, 8), "HW"))
