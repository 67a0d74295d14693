"""Finishes batches from another process: runs the last steps, and copies them to the device.

Batches travel as uint8 if the last steps of the pipeline can run on whole batches. `find_tail`
finds these steps, and `leave_steps` returns the receiver's job, which has only these steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from gpupipe.engines.base import Batch, Job
from gpupipe.engines.batch import BatchMemory
from gpupipe.engines.uint8_conversion import (
    can_convert_values,
    convert_in_parts,
    convert_values,
    find_conversions,
)
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec, Step
from gpupipe.runtime.memory import on_stream
from gpupipe.sampling.sampler import Plan

_SPARE_BATCHES = 4
"""For how many batches the finisher keeps unused memory: the usual prefetch, and some more."""


def find_tail(pipeline: Pipeline) -> tuple[int, ...]:
    """Return the positions in `pipeline.entries` of the last steps that can run on uint8 batches.

    Each field of a batch, such as a view, has last steps of its own.
    """
    return tuple(sorted(n for name in pipeline.outputs for n in _find_tail(pipeline, name)))


def find_larger_output(pipeline: Pipeline) -> Spec | None:
    """Return the spec of a main output that is not uint8, or None if all are."""
    specs = [pipeline.output_spec_of(name) for name in pipeline.main_outputs]
    return next((spec for spec in specs if not _is_uint8(spec)), None)


def _find_tail(pipeline: Pipeline, name: str) -> list[int]:
    """Return the positions of the last steps on field `name` that can run on uint8 batches."""
    positions = [n for n, entry in enumerate(pipeline.entries) if entry.field == name]
    tail: list[int] = []
    while positions and pipeline.entries[positions[-1]].step.can_run_on_batches:
        tail.append(positions.pop())
    return tail if tail and _is_uint8(pipeline.entries[tail[-1]].input_spec) else []


def _is_uint8(spec: Spec) -> bool:
    return spec.dtype == "uint8" and not spec.encoded


def leave_steps(job: Job, positions: Collection[int]) -> Job:
    """Return the receiver's job: the steps at `positions`, then the conversion to `loader.dtype`.

    Args:
        job: The job with all steps.
        positions: Positions in `pipeline.entries` of the steps that the receiver runs. If there are
            none, the sender has converted the dtype, and the receiver's job has no dtype.
    """
    others = set(range(len(job.pipeline.entries))).difference(positions)
    loader = job.loader if positions else job.loader.model_copy(update={"dtype": None})
    return replace(job, pipeline=job.pipeline.without_entries(others), loader=loader)


class BatchFinisher:
    """Finishes received batches: copies them to the device, and runs the receiver's steps.

    Args:
        job: The receiver's job, from `leave_steps`. Its steps have no random parameters, so each
            runs on a whole batch.
        gpu: Number of the GPU; None for the CPU.

    Attributes:
        device: The device of finished batches, "cpu" or "gpu:N".
        torch_device: The same device as a torch.device.
    """

    def __init__(self, job: Job, gpu: int | None) -> None:
        self._job = job
        self.device = "cpu" if gpu is None else f"gpu:{gpu}"
        self.torch_device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self._stream: torch.cuda.Stream | None = None
        if gpu is not None:
            self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._memory = BatchMemory(_SPARE_BATCHES * len(job.pipeline.outputs))

    def __call__(self, tensors: dict[str, torch.Tensor], plan: Plan) -> Batch:
        if self._stream is None:
            return self._run_steps(tensors, plan)
        with on_stream(self._stream):
            batch = self._run_steps(copy_to_gpu(tensors, self.torch_device), plan)
        # The receive buffer can be used again only after the copies. The training thread does not
        # wait here.
        self._stream.synchronize()
        return batch

    def _run_steps(self, tensors: dict[str, torch.Tensor], plan: Plan) -> Batch:
        return tensors | {
            name: self._finish(name, tensors[name], [entry.step for entry, _ in steps])
            for name, steps in self._job.steps_for(plan).items()
            if name in tensors
        }

    def _finish(self, name: str, images: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
        """Run steps on the images of a field; convert a main output to `loader.dtype`."""
        pipeline = self._job.pipeline
        dtype = self._job.loader.dtype if name in pipeline.main_outputs else None
        if not steps and dtype in (None, str(images.dtype).removeprefix("torch.")):
            return images

        def convert(images: torch.Tensor) -> torch.Tensor:
            for step in steps:
                images = step.torch(images, {})
            return images if dtype is None else images.to(getattr(torch, dtype))

        if images.is_cuda:
            return convert(images)
        conversions = find_conversions(steps) if pipeline.is_image_file(name) else None
        if conversions is not None and can_convert_values(images, conversions, dtype):
            return convert_values(images, conversions, dtype, self._memory)
        return convert_in_parts(images, convert, self._memory)


def copy_to_gpu(tensors: dict[str, torch.Tensor], gpu: torch.device) -> Batch:
    """Copy a batch to a GPU; its ids stay on the CPU.

    The copies are asynchronous, because the receive buffer is page-locked. After they have ended,
    no tensor of the result refers to that buffer.

    Args:
        tensors: The batch, in the receive buffer.
        gpu: The GPU.
    """
    on_gpu = {
        name: tensor.to(gpu, non_blocking=True) for name, tensor in tensors.items() if name != "id"
    }
    return on_gpu | {"id": tensors["id"].clone()}
