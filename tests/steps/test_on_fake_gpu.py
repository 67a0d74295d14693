"""The torch lowering of every step on an image that is on a GPU, as `ship: uint8` leaves steps to a
client.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gpupipe.pipeline import step_registry
from helpers.every_step import STEPS
from helpers.fake_gpu import GPU, FakeGpu
from helpers.step_examples import CASES, drawn, givens


def test_there_is_an_example_of_every_step() -> None:
    """But of decode, whose image is made where its file is read, and dali, which is not torch."""
    assert STEPS.keys() == step_registry.builtin_names() - {"decode", "dali"}


def test_each_example_is_run() -> None:
    """But to_dtype from levels or floats to another range, some of which it refuses."""
    assert all(givens(name, options) for name, options in CASES if not options.get("scale"))


@pytest.mark.parametrize(
    ("name", "options"),
    [case for case in CASES if not case[1].get("expand") and case[0] != "jpeg"],
    ids=str,
)
def test_all_of_it_is_on_the_gpu(name: str, options: dict[str, Any]) -> None:
    """But random_rotation with expand, and jpeg: they compute with numbers, which a fake tensor has
    not.
    """
    for given in givens(name, options):
        step, p = drawn(name, options, given)
        dtype = getattr(torch, given.dtype)
        shape = (3, given.height, given.width)
        expected = step.torch(torch.zeros(shape, dtype=dtype), p)
        with FakeGpu(strict=False):
            made = step.torch(torch.zeros(shape, dtype=dtype, device=GPU), p)
        assert made.device == GPU
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape)


ON_BATCHES = [case for case in CASES if step_registry.find(case[0]).can_run_on_batches]


@pytest.mark.parametrize(("name", "options"), ON_BATCHES, ids=str)
def test_what_may_be_left_to_a_client_never_waits_for_the_gpu(
    name: str, options: dict[str, Any]
) -> None:
    """Whole batches, in each memory format."""
    for given in givens(name, options):
        step, p = drawn(name, options, given)
        with FakeGpu():
            for memory_format in (torch.contiguous_format, torch.channels_last):
                batch = torch.empty(4, 3, 40, 50, dtype=getattr(torch, given.dtype), device=GPU)
                made = step.torch(batch.to(memory_format=memory_format), p)
                assert made.device == GPU
                assert made.is_contiguous(memory_format=memory_format)
