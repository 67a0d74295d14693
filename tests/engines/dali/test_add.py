"""Noise that is added in DALI: the numbers, and the graph for a GPU."""

from typing import Any

import numpy as np
import pytest
from nvidia.dali import Pipeline, fn, types

from gpupipe.dataset.spec import Spec
from gpupipe.engines.dali.operators.image import ImageTracer
from helpers.dali_nodes import check_runs_on_gpu, graph_of


def source(array: Any, layout: str = "", device: str = "cpu") -> Any:
    dtype = types.to_dali_type(str(array.dtype))
    return fn.external_source(
        lambda: array, dtype=dtype, ndim=array.ndim - 1, layout=layout, device=device
    )


def graph(pixels: Any, values: Any, clip: bool, device: Any = "cpu", taken: Any = None) -> Any:
    """The node of images to which values were added; those of `taken` alone, if it is given."""
    node = source(pixels, "HWC", device)
    size = np.array([pixels.shape[1:3]] * len(pixels), np.float64)
    image = ImageTracer(size, device)
    image.spec = Spec.of_image(3, dtype=str(pixels.dtype))
    if taken is None:
        image.add(values, clip)
    else:
        image.switch(taken, [lambda part: None, lambda part: part.add(values, clip)])
    return graph_of(image, node, source)


def run_pipeline(*arguments: Any, taken: Any = None) -> Any:
    pipe = Pipeline(batch_size=len(arguments[0]), num_threads=1, device_id=None)
    with pipe:
        pipe.set_outputs(graph(*arguments, taken=taken))
    (output,) = pipe.run()
    return np.stack([np.array(output[n]) for n in range(len(arguments[0]))])


def arrays(dtype: str) -> tuple[Any, Any]:
    """Images, and what is added: beyond the range of the dtype too."""
    rng = np.random.default_rng(0)
    shape = (4, 6, 7, 3)
    if dtype == "uint8":
        values = rng.integers(-300, 300, shape).astype(np.int16)
        return rng.integers(0, 256, shape).astype(np.uint8), values
    return rng.random(shape).astype(dtype), rng.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_it_is_what_numpy_adds(dtype: str, clip: bool) -> None:
    pixels, values = arrays(dtype)
    total = pixels.astype(np.float32 if dtype != "uint8" else np.int16) + values
    most = 255 if dtype == "uint8" else 1
    expected = total.clip(0, most) if clip or dtype == "uint8" else total
    made = run_pipeline(pixels, values, clip)
    assert made.dtype == dtype
    tolerance = 2.0**-10 if dtype == "float16" else 0
    np.testing.assert_allclose(made, expected.astype(dtype), rtol=tolerance, atol=0)


@pytest.mark.parametrize("taken", [[0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]], ids=str)
def test_in_a_branch_each_image_gets_its_own_values(taken: list[int]) -> None:
    pixels, values = arrays("uint8")
    made = run_pipeline(pixels, values, True, taken=np.array(taken))
    added = (pixels.astype(np.int16) + values).clip(0, 255)
    for n, is_taken in enumerate(taken):
        assert np.array_equal(made[n], added[n] if is_taken else pixels[n])


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
def test_the_graph_for_a_gpu_is_built_of_operators_that_run_there(dtype: str) -> None:
    """As nodes: no GPU is needed for that."""
    pixels, values = arrays(dtype)
    with Pipeline(batch_size=4, num_threads=1, device_id=None):
        node = graph(pixels, values, True, "gpu")
    check_runs_on_gpu(node)
