"""Runs the last steps of a pipeline on whole uint8 batches.

Batches travel between processes as uint8 if the last steps of the pipeline can run on whole
batches. `find_tail` finds these steps, and `leave_steps` returns the receiver's job, which has only
these steps. BatchFinisher copies a received batch to the device, and runs the steps.

On a CPU, to_dtype, normalize and a change of dtype are together one lookup in a table, which holds
the result for each of the 256 values, in each channel. The table is computed once, with
torchvision's arithmetic. The extension `gpupipe._kernels` then converts a batch in one pass.
Without the extension, torch converts a few images at a time, so that intermediate results stay in
the processor's cache. The memory of the result is reused, because allocating it takes longer than
the conversion.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gpupipe.engines.base import Batch, Job
from gpupipe.engines.batch import convert_in_parts, stays_on_cpu
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import Spec, Step
from gpupipe.runtime.batch_memory import BatchMemory
from gpupipe.runtime.installation import find_extension
from gpupipe.runtime.memory import on_stream
from gpupipe.sampling.sampler import Plan
from gpupipe.steps.to_dtype import Normalize, ToDtype

_SPARE_BATCHES = 4
"""For how many batches the finisher keeps unused memory: the usual prefetch, and some more."""
_BITS = {torch.bfloat16: torch.int16}
"""NumPy lacks these dtypes, so it gets a tensor as integers with the same bits."""
_CONVERTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_RGB = 3
_extension = find_extension()

VALUES = torch.arange(256, dtype=torch.uint8)[None, None]
Conversions = tuple[tuple[str, Any], ...]
"""Each step in order: ("to_dtype", (dtype, scale)) or ("normalize", (mean, std))."""
_MAX_VALUE = 255


def find_conversions(steps: Sequence[Step]) -> Conversions | None:
    """Return the steps as Conversions; None if a step is neither to_dtype nor normalize."""
    conversions: list[tuple[str, Any]] = []
    for step in steps:
        if type(step) is ToDtype:
            conversions.append(("to_dtype", (step.dtype, step.scale)))
        elif type(step) is Normalize:
            conversions.append(("normalize", (step.mean, step.std)))
        else:
            return None
    return tuple(conversions)


@lru_cache(maxsize=64)
def make_table(conversions: Conversions, dtype: str | None, channels: int) -> torch.Tensor:
    """Return the result of the steps for each of the 256 uint8 values, (channels, 1, 256).

    Args:
        conversions: The steps that are applied.
        dtype: The dtype of the result; None keeps the dtype of the last step.
        channels: The number of channels.
    """
    values = VALUES.expand(channels, 1, 256).contiguous()
    for primitive, options in conversions:
        if primitive == "to_dtype":
            values = _convert(values, *options)
        else:
            values = Normalize(mean=options[0], std=options[1]).torch(values, {})
    return values if dtype is None else values.to(getattr(torch, dtype))


def _convert(values: torch.Tensor, dtype: str, scale: bool) -> torch.Tensor:
    """Apply to_dtype to a tensor.

    The conversion of uint8 to floats is written here, with torchvision's arithmetic: importing
    torchvision takes a second and 110 MiB, and most pipelines use it for nothing else.
    """
    new_dtype: torch.dtype = getattr(torch, dtype)
    if values.dtype == torch.uint8 and new_dtype.is_floating_point:
        floats = values.to(new_dtype)
        return floats.mul_(1 / _MAX_VALUE) if scale else floats
    converted: torch.Tensor = ToDtype(dtype=dtype, scale=scale).torch(values, {})
    return converted


@lru_cache(maxsize=64)
def make_coefficients(
    conversions: Conversions, dtype: str | None, channels: int
) -> NDArray[np.float32] | None:
    """Return [scale, mean, std] of each channel, (3, channels), in float32.

    With them, the result for value v in channel c is (v * scale[c] - mean[c]) / std[c], computed in
    float32 and then converted to the dtype of the result. Returns None if a result would differ
    from that of `make_table`, or if its dtype is neither float32 nor float16.

    Args:
        conversions: The steps that are applied.
        dtype: The dtype of the result; None keeps the dtype of the last step.
        channels: The number of channels.
    """
    table = make_table(conversions, dtype, channels)
    if table.dtype not in (torch.float32, torch.float16):
        return None
    scale, mean, std = np.ones(channels), np.zeros(channels), np.ones(channels)
    for primitive, options in conversions:
        if primitive == "normalize":
            mean[:], std[:] = options
        elif options[1]:
            scale[:] = 1 / _MAX_VALUE
    rows = np.stack([scale, mean, std]).astype(np.float32)
    column = rows[:, :, None]
    computed = (np.arange(256, dtype=np.float32) * column[0] - column[1]) / column[2]
    is_exact = torch.equal(torch.from_numpy(computed).to(table.dtype), table[:, 0])
    return rows if is_exact else None


def _can_convert_values(images: torch.Tensor, conversions: Conversions, dtype: str | None) -> bool:
    """Return whether `_convert_values` supports these images, steps and dtype."""
    return (
        _extension is not None
        and images.dtype == torch.uint8
        and images.dim() == 4
        and images.shape[1] == _RGB
        and images.numel() > 0
        and images.shape[2] * images.shape[3] <= _extension.MAX_SIDE
        and (images.is_contiguous() or images.is_contiguous(memory_format=torch.channels_last))
        and make_table(conversions, dtype, _RGB).dtype in _CONVERTED
    )


def _convert_values(
    images: torch.Tensor, conversions: Conversions, dtype: str | None, memory: BatchMemory
) -> torch.Tensor:
    """Apply to_dtype and normalize to images; the result has the memory format of the images.

    Args:
        images: A uint8 batch (B, 3, H, W) for which `_can_convert_values` is true.
        conversions: The steps that are applied.
        dtype: The dtype of the result; None keeps the dtype of the last step.
        memory: Provides the memory of the result.
    """
    table = make_table(conversions, dtype, _RGB)
    coefficients = make_coefficients(conversions, dtype, _RGB)
    count, _, height, width = images.shape
    values = _as_numpy(table[:, 0])
    if images.is_contiguous():
        batch = memory.allocate((count, _RGB, height, width), table.dtype)
        source, output = (t.view(count, _RGB, 1, height * width) for t in (images, batch))
        _extension.convert_planes(source.numpy(), (_as_numpy(output), values, coefficients))
        return batch
    block = memory.allocate((count, height, width, _RGB), table.dtype)
    pixels = images.permute(0, 2, 3, 1).view(count, 1, height * width, _RGB)
    output = block.view(count, 1, height * width, _RGB).permute(0, 3, 1, 2)
    stage = _extension.deliver_stage(None, (_as_numpy(output), values, coefficients))
    _extension.run_program(stage, range(count), list(pixels.numpy()))
    return block.permute(0, 3, 1, 2)


def _as_numpy(tensor: torch.Tensor) -> Any:
    return tensor.view(_BITS.get(tensor.dtype, tensor.dtype)).numpy()


def find_tail(pipeline: Pipeline) -> tuple[int, ...]:
    """Return the positions in `pipeline.entries` of the last steps that can run on uint8 batches.

    Each field of a batch, such as a view, has last steps of its own.
    """
    return tuple(sorted(n for name in pipeline.outputs for n in _find_tail(pipeline, name)))


def find_larger_output(pipeline: Pipeline) -> Spec | None:
    """Return the spec of the first main output that is not uint8, or None if all are uint8.

    The main outputs are the main field, or its views if it has any.
    """
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
    """Finishes batches from other processes: copies them to the device, and runs the last steps.

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
        if conversions is not None and _can_convert_values(images, conversions, dtype):
            return _convert_values(images, conversions, dtype, self._memory)
        return convert_in_parts(images, convert, self._memory)


def copy_to_gpu(tensors: dict[str, torch.Tensor], gpu: torch.device) -> Batch:
    """Copy a batch to a GPU; its ids and offsets stay on the CPU.

    The copies are asynchronous, because the receive buffer is page-locked. After they have ended,
    no tensor of the result refers to the receive buffer.

    Args:
        tensors: The batch, in the receive buffer.
        gpu: The GPU.
    """
    return {
        name: tensor.clone() if stays_on_cpu(name) else tensor.to(gpu, non_blocking=True)
        for name, tensor in tensors.items()
    }
