"""The tables and coefficients of the last steps, and these steps on whole batches in the CPU's
memory: the same bits and strides as torch makes of the batch, with the extension and without it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from gpupipe import config as configs
from gpupipe.dataset.index import build_empty
from gpupipe.engines import batch as batch_module
from gpupipe.engines import last_steps
from gpupipe.engines.base import Job
from gpupipe.engines.batch import convert_in_parts
from gpupipe.engines.last_steps import (
    BatchFinisher,
    find_tail,
    leave_steps,
    make_coefficients,
    make_table,
)
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.sampling.sampler import Plan

FLOATS: dict[str, Any] = {"to_dtype": {"dtype": "float32", "scale": True}}
PLAIN: dict[str, Any] = {"to_dtype": {"dtype": "float32", "scale": False}}
HALVES: dict[str, Any] = {"to_dtype": {"dtype": "float16", "scale": True}}
WHOLE: dict[str, Any] = {"to_dtype": {"dtype": "int16", "scale": True}}
ONE: dict[str, Any] = {"normalize": {"mean": 0.4, "std": 0.2}}
THREE: dict[str, Any] = {"normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}
TAILS = [[FLOATS], [PLAIN], [HALVES], [WHOLE], [FLOATS, ONE], [FLOATS, THREE], [HALVES, THREE]]
SHAPES = [(1, 3, 5, 7), (5, 3, 31, 16), (3, 3, 200, 190), (4, 1, 9, 9), (2, 3, 1, 1), (0, 3, 4, 4)]

FIRST = Plan(0, np.arange(2), 0, last=False)


@pytest.fixture(params=[True, False], ids=["extension", "torch"])
def extension(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if not request.param:
        monkeypatch.setattr(last_steps, "_extension", None)
    elif last_steps._extension is None:
        pytest.skip("the extension is not built")
    return last_steps._extension


def finisher(steps: list[Any], dtype: str | None = None) -> BatchFinisher:
    """What a receiver does that is left these steps."""
    changes = {} if dtype is None else {"dtype": dtype}
    config = configs.read(
        {"data": {"source": "folder", "root": "/nowhere"}, "pipeline": ["decode", *steps]},
        **changes,
    )
    job = Job(build_empty(), config.pipeline, config.loader, 1)
    return BatchFinisher(leave_steps(job, find_tail(config.pipeline)), None)


def images(shape: tuple[int, ...], memory_format: torch.memory_format) -> torch.Tensor:
    levels = np.random.default_rng(sum(shape)).integers(0, 256, shape, np.uint8)
    return torch.from_numpy(levels).to(memory_format=memory_format)


def finished(finish: BatchFinisher, batch: torch.Tensor) -> torch.Tensor:
    return finish({"image": batch}, FIRST)["image"]


@pytest.mark.parametrize("steps", TAILS, ids=str)
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
def test_a_batch_has_the_bits_and_strides_that_torch_makes(
    extension: Any, steps: list[Any], dtype: str | None
) -> None:
    finish = finisher(steps, dtype)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        for shape in SHAPES:
            if steps[-1] is THREE and shape[1] != len(THREE["normalize"]["mean"]):
                continue
            batch = images(shape, memory_format)
            expected = batch
            for entry in finish._job.pipeline.entries:
                expected = entry.step.torch(expected, {})
            expected = expected if dtype is None else expected.to(getattr(torch, dtype))
            made = finished(finish, batch)
            assert made.dtype == expected.dtype
            assert torch.equal(made, expected), (shape, memory_format)
            if batch.numel():
                assert made.is_contiguous(memory_format=memory_format), shape


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_memory_is_used_again_and_never_while_a_batch_is_held(
    extension: Any, memory_format: torch.memory_format
) -> None:
    finish = finisher([FLOATS])
    first = finished(finish, images((4, 3, 20, 30), memory_format))
    kept, place = first.clone(), first.untyped_storage().data_ptr()
    second = finished(finish, images((4, 3, 20, 30), memory_format) // 2)
    assert torch.equal(first, kept)
    del first
    third = finished(finish, images((4, 3, 20, 30), memory_format))
    assert third.untyped_storage().data_ptr() == place
    assert torch.equal(third, kept)
    assert not torch.equal(second, kept)


def test_what_is_received_stays_as_it_is(extension: Any) -> None:
    finish, batch = finisher([FLOATS, THREE]), images((4, 3, 20, 30), torch.contiguous_format)
    received = batch.clone()
    finished(finish, batch)
    assert torch.equal(batch, received)


def test_a_batch_that_has_its_dtype_is_not_copied() -> None:
    finish = finisher([], "float32")
    batch = torch.rand(4, 3, 8, 8)
    assert finished(finish, batch) is batch


AXES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as it is": lambda x: x + 1,
    "with other axes": lambda x: x.permute(0, 2, 1) * 2,
    "of another size": lambda x: x.flatten(1),
    "in the memory of other axes": lambda x: x.permute(0, 2, 1).contiguous().permute(0, 2, 1),
}


@pytest.mark.parametrize("convert", AXES.values(), ids=AXES)
@pytest.mark.parametrize("count", [0, 1, 2, 9])
def test_parts_make_the_whole(
    monkeypatch: pytest.MonkeyPatch, convert: Callable[[torch.Tensor], torch.Tensor], count: int
) -> None:
    monkeypatch.setattr(batch_module, "_PART_BYTES", 1000)
    batch = torch.arange(count * 12 * 11, dtype=torch.float32).view(count, 12, 11)
    made, expected = convert_in_parts(batch, convert, BatchMemory(2)), convert(batch)
    assert torch.equal(made, expected)
    assert made.stride() == expected.stride()


# --- tables

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
VALUES = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
SCALED = ("to_dtype", ("float32", True))
NORMAL = ("normalize", (MEAN, STD))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
@pytest.mark.parametrize("scale", [True, False])
def test_a_conversion_is_that_of_torchvision(dtype: str, scale: bool) -> None:
    expected = F.to_dtype(VALUES, getattr(torch, dtype), scale=scale)
    assert torch.equal(make_table((("to_dtype", (dtype, scale)),), None, 3), expected)


@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16", "float64"])
def test_a_normalized_value_is_that_of_torchvision(dtype: str | None) -> None:
    expected = F.normalize(F.to_dtype(VALUES, torch.float32, scale=True), list(MEAN), list(STD))
    made = make_table((SCALED, NORMAL), dtype, 3)
    assert torch.equal(made, expected if dtype is None else expected.to(getattr(torch, dtype)))


def test_without_conversions_a_value_is_itself() -> None:
    assert torch.equal(make_table((), None, 1)[0, 0], torch.arange(256, dtype=torch.uint8))


@pytest.mark.parametrize("dtype", [None, "float16"])
def test_the_coefficients_make_the_table_to_the_bit(dtype: str | None) -> None:
    coefficients = make_coefficients((SCALED, NORMAL), dtype, 3)
    assert coefficients is not None
    scale, mean, std = coefficients[:, :, None]
    made = torch.from_numpy((np.arange(256, dtype=np.float32) * scale - mean) / std)
    table = make_table((SCALED, NORMAL), dtype, 3)[:, 0]
    assert torch.equal(made.to(table.dtype), table)


def test_a_table_that_float32_does_not_make_has_no_coefficients() -> None:
    assert make_coefficients((("to_dtype", ("float16", True)), NORMAL), "float32", 3) is None
    assert make_coefficients((SCALED,), "bfloat16", 3) is None
    assert make_coefficients((("to_dtype", ("float64", True)),), None, 3) is None
