"""Native programs: which fields have one, and that a batch of unequal samples has none."""

from typing import Any

import numpy as np
import pytest
import torch

from gpupipe.engines.batch import DeliveryFormat
from gpupipe.engines.cpu.lowering import find_rules
from gpupipe.engines.cpu.output_buffer import OutputBuffer
from gpupipe.engines.cpu.pixels import as_tensor
from gpupipe.engines.cpu.program import Program, ViewProgram
from gpupipe.engines.cpu.stages import create_native, create_program, create_run, run_native
from gpupipe.engines.cpu.tracer import Tracer
from gpupipe.pipeline.step import Spec
from gpupipe.runtime.batch_memory import BatchMemory
from helpers.kernel_arguments import picture

pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
SPEC = Spec.of_image(3)
IMAGES = [picture(20, 30, seed=n) for n in range(3)]


def create_tracer(count: int = 3) -> Tracer:
    return Tracer([[20, 30]] * count, find_rules(), SPEC)


def output(count: int = 3, memory: BatchMemory | None = None) -> OutputBuffer:
    format = DeliveryFormat(None, None, channels_last=False)
    return OutputBuffer(count, format, BatchMemory(1) if memory is None else memory)


def crop(tracer: Tracer) -> None:
    tracer.crop(np.array([[1, 2], [3, 4], [5, 6]]), np.array([9, 8]))


def flip(tracer: Tracer) -> None:
    tracer.flip(np.array([1, 0, 1]))


def run_all(groups: Any, buffer: OutputBuffer, views: Any = ()) -> torch.Tensor:
    stage = create_native(groups, views)
    assert stage is not None
    assert run_native(create_run(stage, IMAGES, None, None), range(3)) == []
    return buffer.take([0, 1, 2])


def alone(program: Program) -> torch.Tensor:
    """The results of the kernels, one sample after the other."""
    return torch.stack([as_tensor(program.run(image, n)) for n, image in enumerate(IMAGES)])


def test_a_native_program_has_the_pixels_of_the_kernels() -> None:
    tracer, buffer = create_tracer(), output()
    crop(tracer)
    tracer.switch(np.array([0, 1, 1]), [lambda branch: None, flip])
    program, reference = tracer.program(buffer), create_tracer()
    crop(reference)
    reference.switch(np.array([0, 1, 1]), [lambda branch: None, flip])
    expected = alone(reference.program())
    assert torch.equal(run_all(program.groups, buffer), expected)
    assert buffer.list_shapes(range(3)) == [(3, 9, 8)] * 3


def test_a_blend_sums_its_branches() -> None:
    buffer, weights = output(), np.random.default_rng(3).dirichlet([1, 1, 1], 3)

    def blend(tracer: Tracer) -> None:
        crop(tracer)
        tracer.blend([lambda branch: None, flip, flip], weights)

    tracer, reference = create_tracer(), create_tracer()
    blend(tracer)
    blend(reference)
    assert torch.equal(run_all(tracer.program(buffer).groups, buffer), alone(reference.program()))


def test_views_start_from_the_same_image() -> None:
    tracer, buffers = create_tracer(), [output(), output()]
    crop(tracer)
    views, expected = [], []
    for buffer, turned in zip(buffers, (True, False), strict=True):
        view, same = tracer.fork(), create_tracer()
        crop(same)
        for traced in (view, same):
            if turned:
                flip(traced)
        views.append(ViewProgram(view.program(buffer), 1, 3))
        expected.append(alone(same.program()))
    first = run_all(tracer.program().groups, buffers[0], views)
    assert torch.equal(first, expected[0])
    assert torch.equal(buffers[1].take([0, 1, 2]), expected[1])


def test_samples_of_unequal_size_have_none() -> None:
    tracer = create_tracer()
    tracer.crop(np.zeros((3, 2)), np.array([[9, 8], [9, 8], [9, 7]]))
    assert create_program(tracer.program().groups) is not None, "it delivers nothing"
    assert create_native(tracer.program(output()).groups, []) is None


def test_without_memory_there_is_none() -> None:
    tracer = create_tracer()
    crop(tracer)
    format = DeliveryFormat(None, None, channels_last=False)
    assert create_native(tracer.program(OutputBuffer(3, format, None)).groups, []) is None


def test_a_kernel_without_a_stage_has_none() -> None:
    tracer, buffer = create_tracer(), output()
    tracer.call_torch(lambda image: image + 1)
    assert create_native(tracer.program(buffer).groups, []) is None
    assert not buffer.is_allocated, "nothing is allocated in vain"


def test_a_branch_without_a_stage_leaves_its_samples_to_python() -> None:
    tracer, buffer = create_tracer(), output()
    tracer.switch(np.array([0, 1, 0]), [flip, lambda branch: branch.call_torch(torch.negative)])
    stage = create_native(tracer.program(buffer).groups, [])
    assert stage is not None
    assert run_native(create_run(stage, IMAGES, None, None), range(3)) == [1]
