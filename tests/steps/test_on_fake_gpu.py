"""The torch lowering of every step on an image that is on a GPU, as `ship: uint8` leaves steps to a
client.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gpupipe.dataset.spec import Spec
from gpupipe.pipeline import step_registry
from helpers.every_step import NEED_ANNOTATIONS, STEPS
from helpers.fake_gpu import GPU, FakeGpu
from helpers.step_examples import CASES, drawn, givens


def test_there_is_an_example_of_every_step() -> None:
    """But of decode, whose image is made where its file is read, of dali, which is not torch, and
    of steps that need boxes or points.
    """
    others = {"decode", "dali", *NEED_ANNOTATIONS}
    assert STEPS.keys() == step_registry.STEPS.builtin_names - others


def test_each_example_is_run() -> None:
    """But to_dtype from levels or floats to another range, some of which it refuses."""
    assert all(givens(name, options) for name, options in CASES if not options.get("scale"))


EXAMPLES: dict[str, list[dict[str, Any]]] = {}
"""The options of the examples of each step."""
for _name, _options in CASES:
    EXAMPLES.setdefault(_name, []).append(_options)


def given_examples(name: str) -> Iterator[tuple[dict[str, Any], Spec]]:
    """The options of each example, with each image that it is given."""
    return ((options, given) for options in EXAMPLES[name] for given in givens(name, options))


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "jpeg"])
def test_all_of_it_is_on_the_gpu(name: str) -> None:
    """But random_rotation with expand, and jpeg: they compute with numbers, which a fake tensor has
    not.
    """
    for options, given in given_examples(name):
        if options.get("expand"):
            continue
        step, p = drawn(name, options, given)
        dtype = getattr(torch, given.dtype)
        shape = (3, given.height, given.width)
        expected = step.torch(torch.zeros(shape, dtype=dtype), p)
        with FakeGpu(strict=False):
            made = step.torch(torch.zeros(shape, dtype=dtype, device=GPU), p)
        assert made.device == GPU, options
        assert (made.dtype, made.shape) == (expected.dtype, expected.shape), options


ON_BATCHES = [name for name in EXAMPLES if step_registry.STEPS.find(name).can_run_on_batches]


@pytest.mark.parametrize("name", ON_BATCHES)
def test_what_may_be_left_to_a_client_never_waits_for_the_gpu(name: str) -> None:
    """Whole batches, in each memory format."""
    for options, given in given_examples(name):
        step, p = drawn(name, options, given)
        with FakeGpu():
            for memory_format in (torch.contiguous_format, torch.channels_last):
                batch = torch.empty(4, 3, 40, 50, dtype=getattr(torch, given.dtype), device=GPU)
                made = step.torch(batch.to(memory_format=memory_format), p)
                assert made.device == GPU, options
                assert made.is_contiguous(memory_format=memory_format), options
