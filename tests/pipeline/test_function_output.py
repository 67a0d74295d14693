import pytest
import torch

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline.function_output import Returns, draw_images

IMAGE = Spec.of_image(3)


def learn(*outputs: torch.Tensor) -> Returns:
    return Returns.of_outputs(IMAGE, draw_images(IMAGE), outputs)


def test_drawn_images_differ_in_size_and_are_the_same_each_time() -> None:
    first, second = draw_images(IMAGE)
    assert first.dtype == second.dtype == torch.uint8
    assert first.shape != second.shape
    assert torch.equal(first, draw_images(IMAGE)[0])


def test_what_stays_is_not_declared() -> None:
    assert learn(*draw_images(IMAGE)) == Returns()


@pytest.mark.parametrize(
    ("sides", "size"), [([(5, 6), (5, 6)], (5, 6)), ([(5, 6), (7, 6)], "any")], ids=str
)
def test_sizes(sides: list[tuple[int, int]], size: object) -> None:
    returns = learn(*(torch.zeros(1, *side) for side in sides))
    assert (returns.dtype, returns.channels, returns.size) == ("float32", 1, size)


@pytest.mark.parametrize(
    ("low", "high", "values"), [(0, 1, "usual"), (0, 255, "unscaled"), (-1, 1, "normalized")]
)
def test_the_range_of_floats(low: float, high: float, values: str) -> None:
    outputs = [torch.rand(image.shape) * (high - low) + low for image in draw_images(IMAGE)]
    assert learn(*outputs).apply_to(IMAGE).pixels.values == values
