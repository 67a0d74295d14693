"""ColorBranches: an engine that reads what the branches are makes the pixels of one that calls."""

import weakref
from typing import Any

import numpy as np
import pytest

from gpupipe.augment.color_branches import ColorBranches, clip_to_range
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.pixels import as_array
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec

NAMES = ("", "posterize", "", "adjust_contrast", "invert", "adjust_saturation")
VALUES = np.array([1.0, 9.7, 3.0, -0.5, 2.0, 1.6])


def make_branches(count: int) -> ColorBranches:
    values = [np.full(count, value) for value in VALUES]
    return ColorBranches(NAMES, values, {2: lambda part: part.flip(np.ones(count, np.int32))})


def run(dtype: str, index: Any, branches: Any) -> list[Any]:
    image = np.random.default_rng(0).integers(0, 256, (5, 6, 3)).astype(dtype)
    tracer = Tracer(np.full((len(index), 2), [5, 6]), find_rules(), Spec.of_image(3, dtype=dtype))
    tracer.switch(index, branches)
    program = tracer.program()
    return [np.array(as_array(program.run(image, row))) for row in range(len(index))]


def test_the_values_are_clipped_and_truncated() -> None:
    assert [clip_to_range("posterize", np.array(n)) for n in (9.7, 3.9, -1.0)] == [[8], [3], [0]]
    assert clip_to_range("adjust_contrast", np.array([-0.5, 3.9]))[0].tolist() == [0.0, 3.9]
    assert clip_to_range("invert", np.ones(2)) == []
    assert not ColorBranches((), []), "of a color_jitter without adjustments"


@pytest.mark.parametrize("names", [NAMES, tuple(name for name in NAMES if name)])
def test_branches_that_are_read_make_the_pixels_of_those_that_are_called(names: Any) -> None:
    index = np.arange(12) % len(names)
    branches = make_branches(12) if names == NAMES else ColorBranches(names, [np.ones(12)])
    read, called = run("uint8", index, branches), run("uint8", index, list(branches))
    assert all(np.array_equal(one, other) for one, other in zip(read, called, strict=True))
    assert len({one.tobytes() for one in read}) > 2


def test_branches_are_freed_without_the_garbage_collector() -> None:
    """They have the values of a batch."""
    branches = make_branches(2)
    is_alive = weakref.ref(branches)
    del branches
    assert is_alive() is None
