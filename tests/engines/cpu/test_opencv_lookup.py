"""Lookup tables of uint8 with stringzilla and without it, alone and in deliveries."""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu import kernels
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.program import Rules
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.batch_memory import BatchMemory
from helpers.opencv_pictures import picture

pytest.importorskip("cv2", reason="OpenCV is not installed")

from gpupipe.engines.cpu import opencv_kernels, opencv_lookup
from gpupipe.engines.cpu.opencv_lookup import look_up


@pytest.fixture(params=["stringzilla", "cv2"], autouse=True)
def library(request: pytest.FixtureRequest) -> Iterator[str]:
    """What looks bytes up."""
    if request.param == "stringzilla":
        pytest.importorskip("stringzilla", reason="stringzilla is not installed")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "cv2":
            patch.setitem(sys.modules, "stringzilla", None)
        importlib.reload(opencv_lookup)  # functions that were imported before follow
        assert (opencv_lookup.translate is None) == (request.param == "cv2")
        yield request.param
    importlib.reload(opencv_lookup)


@pytest.mark.parametrize("shape", [(1, 1), (7, 9), (3, 13, 21), (300, 511, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_each_level_is_replaced(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    # Neither the array nor the result is aligned.
    memory = rng.integers(0, 256, 3 + int(np.prod(shape)), np.uint8)
    array = memory[3:].reshape(shape)
    array.flags.writeable = False
    table: Any = rng.permutation(256).astype(dtype)
    slots = np.full(array.size + 20, 7, dtype)
    out = slots[9:-11].reshape(shape)
    assert look_up(array, table, out) is out
    assert np.array_equal(out, table[array])
    assert (slots[:9] == 7).all()
    assert (slots[-11:] == 7).all()


def test_an_array_may_take_its_own_levels() -> None:
    array = picture((64, 80), 3)
    table = np.random.default_rng(1).permutation(256).astype(np.uint8)[::-1]
    expected = table[array]
    look_up(array, table, array)
    assert np.array_equal(array, expected)


CHANGES: dict[str, list[tuple[str, list[Any]]]] = {
    "nothing": [],
    "one table": [("adjust_brightness", [[1.3, 0.8]]), ("posterize", [[3, 5]])],
    "a table that changes nothing": [("posterize", [[8, 8]])],
    "one for each channel": [("equalize", []), ("invert", [])],
}


@pytest.mark.parametrize("changes", CHANGES)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("channels_last", [False, True])
def test_bytes_are_delivered_as_by_torch(changes: str, channels: int, channels_last: bool) -> None:
    large, size = picture((90, 100), channels), (64, 80)
    packed = large[:64, :80].copy()
    in_planes = np.ascontiguousarray(packed.transpose(2, 0, 1)).transpose(1, 2, 0)
    for image in (packed, in_planes, large[7:71, 5:85]):
        batches, before = [], image.copy()
        for rules in (Rules(opencv_kernels.create_rules()), Rules(kernels.RULES)):
            buffer = OutputBuffer(2, DeliveryFormat(None, None, channels_last), BatchMemory(1))
            tracer = Tracer([size] * 2, rules, Spec.of_image(channels))
            for name, values in CHANGES[changes]:
                tracer.color(name, *map(np.array, values))
            program = tracer.program(buffer)
            for row in (0, 1):
                program.run(image, row)
            batches.append(buffer.take(range(2)))
        assert torch.equal(*batches)
        assert np.array_equal(image, before), "the input is left alone"
        if changes in ("nothing", "a table that changes nothing"):
            expected = torch.from_numpy(before).permute(2, 0, 1)
            assert torch.equal(batches[0], expected.expand(2, -1, -1, -1))
