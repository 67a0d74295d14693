from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from nvidia.dali import Pipeline, backend, fn, types
from torchvision.transforms.v2 import functional as F

from gpupipe.dataset.spec import Spec
from gpupipe.engines.dali.operators.image import ImageTracer
from gpupipe.engines.dali.operators.subgraph import Subgraph
from gpupipe.steps.grayscale import Grayscale
from helpers.reference import differences


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
