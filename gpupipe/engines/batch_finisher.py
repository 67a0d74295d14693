"""Finishes batches that were made elsewhere: the last steps, and the copy to the device.

PipelineTail is the last steps of a pipeline that can run on whole uint8 batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gpupipe.engines.base import Batch, Operator
from gpupipe.engines.batch import BatchMemory
from gpupipe.engines.uint8_conversion import (
    can_convert_values,
    convert_in_parts,
    convert_values,
    find_conversions,
)
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec, Step
from gpupipe.runtime.transfer import on_stream

_SPARE_BATCHES = 4
"""Finished batches whose memory waits to be used again: the loader's prefetch, and some more."""


@dataclass(frozen=True)
class PipelineTail:
    """The steps that are left to the receiver of batches.

    Attributes:
        pipeline: The whole pipeline.
        positions: The positions of those steps among its entries.
        dtype: Dtype of the first field after them; None keeps the dtype that they make.
    """

    pipeline: Pipeline
    positions: tuple[int, ...]
    dtype: str | None

    def at_epoch(self, epoch: int) -> tuple[Entry, ...]:
        """Return the steps of an epoch, in order."""
        entries = self.pipeline.at_epoch(epoch).entries
        return tuple(entries[n] for n in self.positions)

    def list_operators(self, maker: str, device: str) -> list[Operator]:
        """Return the operators that run in epoch 0: `maker` elsewhere, then the steps here."""
        tail = self.at_epoch(0)
        head = dict.fromkeys(e.key for e in self.pipeline.entries if e not in tail)
        here = dict.fromkeys((f"{e.name}.torch", device, (e.key,)) for e in tail)
        return [(maker, "remote", tuple(head)), *here]


def find_tail(pipeline: Pipeline) -> tuple[int, ...]:
    """Return the positions of the last entries that can run on uint8 batches.

    Each field of a batch, such as a view, has last steps of its own.
    """
    return tuple(sorted(n for name in pipeline.outputs for n in _find_tail(pipeline, name)))


def find_larger_output(pipeline: Pipeline) -> Spec | None:
    """Return the spec of a main output that is not uint8, or None if all are."""
    specs = [pipeline.output_spec_of(name) for name in pipeline.main_outputs]
    return next((spec for spec in specs if not _is_uint8(spec)), None)


def _find_tail(pipeline: Pipeline, name: str) -> list[int]:
    """Return the positions of the last steps on a field, if they can run on uint8 batches of it."""
    positions = [n for n, entry in enumerate(pipeline.entries) if entry.field == name]
    tail: list[int] = []
    while positions and pipeline.entries[positions[-1]].step.can_run_on_batches:
        tail.append(positions.pop())
    return tail if tail and _is_uint8(pipeline.entries[tail[-1]].input_spec) else []


def _is_uint8(spec: Spec) -> bool:
    return spec.dtype == "uint8" and not spec.encoded


class BatchFinisher:
    """Finishes received batches: copies them to the device, and runs the steps left to this side.

    Args:
        tail: The steps that are left to this side.
        gpu: Number of the GPU; None for the CPU.

    Attributes:
        device: The device of finished batches, "cpu" or "gpu:N".
        torch_device: The same for torch.
    """

    def __init__(self, tail: PipelineTail, gpu: int | None) -> None:
        self._tail = tail
        self.device = "cpu" if gpu is None else f"gpu:{gpu}"
        self.torch_device = torch.device("cpu") if gpu is None else torch.device("cuda", gpu)
        self._stream: torch.cuda.Stream | None = None
        if gpu is not None:
            self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._memory = BatchMemory(_SPARE_BATCHES * len(tail.pipeline.outputs))

    def __call__(self, tensors: dict[str, torch.Tensor], epoch: int) -> Batch:
        if self._stream is None:
            return self._run_steps(tensors, epoch)
        with on_stream(self._stream):
            batch = self._run_steps(copy_to_gpu(tensors, self.torch_device), epoch)
        # The receive buffer can be used again only after the copies. The training thread does not
        # wait here.
        self._stream.synchronize()
        return batch

    def _run_steps(self, tensors: dict[str, torch.Tensor], epoch: int) -> Batch:
        return tensors | {
            name: self._finish(name, tensors[name], steps)
            for name, steps in self._steps_at(epoch).items()
        }

    def _finish(self, name: str, images: torch.Tensor, steps: Sequence[Step]) -> torch.Tensor:
        """Run steps on a field, and convert it to the last dtype."""
        pipeline = self._tail.pipeline
        dtype = self._tail.dtype if name in pipeline.main_outputs else None

        def convert(images: torch.Tensor) -> torch.Tensor:
            for step in steps:
                images = step.torch(images, {})
            return images if dtype is None else images.to(getattr(torch, dtype))

        if images.is_cuda:
            return convert(images)
        if not steps and str(images.dtype) == f"torch.{dtype}":
            return images
        conversions = find_conversions(steps) if pipeline.is_image_file(name) else None
        if conversions is not None and can_convert_values(images, conversions, dtype):
            return convert_values(images, conversions, dtype, self._memory)
        return convert_in_parts(images, convert, self._memory)

    def _steps_at(self, epoch: int) -> dict[str, list[Step]]:
        """Return the steps of an epoch, for each field that has some or gets another dtype."""
        steps: dict[str, list[Step]] = {}
        if self._tail.dtype is not None:
            steps = {name: [] for name in self._tail.pipeline.main_outputs}
        for entry in self._tail.at_epoch(epoch):
            steps.setdefault(entry.field, []).append(entry.step)
        return steps


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
