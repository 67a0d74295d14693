"""Windows that are erased in the slots of a batch: the reference's pixels, in one pass."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.installation import find_extension
from helpers.loaders import loading
from helpers.reference import by_id, operators

load = loading(engine="cpu", threads=2, batch_size=8)
REFERENCE: dict[str, Any] = {"engine": "dataloader", "workers": 0}
CROP: list[Any] = ["decode", {"random_resized_crop": {"size": 64}}]
CENTER = {"center_crop": {"size": 64}}
RANDOM_CROP = {"random_crop": {"size": 64}}
FLOATS: list[Any] = [
    {"to_dtype": {"dtype": "float32", "scale": True}},
    {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
]


def erasing(value: Any, p: float = 0.5) -> dict[str, Any]:
    return {"random_erasing": {"p": p, "value": value, "scale": [0.1, 0.3]}}


FORMATS = [
    {"memory_format": memory_format, "dtype": dtype}
    for memory_format in ("contiguous", "channels_last")
    for dtype in (None, "float16", "bfloat16")
]


@pytest.mark.parametrize(
    "steps",
    [
        [*CROP, *FLOATS, erasing([0.1, -3.7, 100.3])],
        [*CROP, FLOATS[0], erasing(1 + 2**-11 + 2**-40)],  # rounded to float32, and then to less
        [*CROP, erasing([3, 200, 77])],
        [*CROP, "random_horizontal_flip", *FLOATS, erasing(0)],
        [*CROP, erasing(90), *FLOATS, erasing(1.5), "random_vertical_flip"],
        [*CROP, {"to_dtype": {"dtype": "float16", "scale": True}}, erasing(0.333)],
        ["decode", {"resize": {"size": 70}}, CENTER, *FLOATS, erasing(-1, p=1.0)],
        [{"decode": {"mode": "gray"}}, CENTER, FLOATS[0], erasing([0.7])],
        [*CROP, *FLOATS, erasing("random")],
        ["decode", *FLOATS, RANDOM_CROP, "random_horizontal_flip", erasing(0)],
        [*CROP, {"to_dtype": {"dtype": "float16", "scale": True}}, erasing("random")],
        [{"decode": {"mode": "gray"}}, CENTER, FLOATS[0], erasing("random"), erasing("random")],
    ],
    ids=str,
)
def test_pixels_are_those_of_the_reference(few_photos: Path, steps: list[Any]) -> None:
    expected = {}
    for options in FORMATS:
        with load(few_photos, steps, **options) as loader:
            found = by_id(loader)
        if (dtype := options["dtype"]) not in expected:
            with load(few_photos, steps, dtype=dtype, **REFERENCE) as loader:
                expected[dtype] = by_id(loader)
        assert found.keys() == expected[dtype].keys()
        for id, image in found.items():
            assert image.dtype == expected[dtype][id].dtype
            assert torch.equal(image, expected[dtype][id]), (options, id)


def test_a_switch_erases_the_samples_that_take_its_branch() -> None:
    spec = Spec.of_image(3)
    tracer = Tracer([(4, 5)] * 2, find_rules(), spec)
    tracer.switch(
        np.array([1, 0]), [lambda part: None, lambda part: part.erase((1, 2), (3, 2), (9.0,))]
    )
    program = tracer.program()
    image = np.zeros((4, 5, 3), np.uint8)
    assert as_tensor(program.run(image, 0)).sum() == 9 * 3 * 2 * 3
    assert as_tensor(program.run(image, 1)).sum() == 0


def test_most_are_erased_in_part(few_photos: Path) -> None:
    """So that the test above compares something."""
    with load(few_photos, [*CROP, *FLOATS, erasing(77.0, p=1.0)]) as loader:
        shares = [float((image == 77).float().mean()) for image in by_id(loader).values()]
    assert all(0.05 < share < 0.4 for share in shares)


def test_the_conversion_and_the_erasing_are_one_kernel(few_photos: Path) -> None:
    with load(few_photos, [*CROP, *FLOATS, erasing(0)]) as loader:
        name, _, steps = operators(loader)[-1]
    assert steps[-3:] == ("to_dtype", "normalize", "random_erasing")
    assert (name == "kernels.resize") == (find_extension() is not None)


def test_crops_and_flips_after_the_conversion_are_one_program_with_it(few_photos: Path) -> None:
    steps = ["decode", *FLOATS, RANDOM_CROP, "random_horizontal_flip"]
    with load(few_photos, steps) as loader:
        names = [name for name, _, _ in operators(loader)]
    last = "kernels.convert" if find_extension() is not None else names[-1]
    assert names[-1] == last
    assert not any("torch" in name for name in names)
