"""loader.gpu_memory: computes how much GPU memory a job needs before it runs.

DALI offers no limit on its memory. Its pool grows with the outputs of its operators, in blocks of
64 MiB, and shrinks only on request. But the sizes of the outputs follow from the image sizes in the
headers of the files. The estimate is the sum, in whole blocks, of:

- the outputs of all operators for each of the `prefetch` batches in progress;
- one delivered batch, since the trainer holds a batch meanwhile;
- a buffer of 16 MiB that nvJPEG has for each thread (device_memory_padding of DALI's decoder).

Examples:
    256 images of 300x400 in RGB are decoded, warped, and normalized to float32, with prefetch 2 and
    8 threads. The three outputs have 1 + 1 + 4 bytes for each value, 527 MiB a batch:

    2 x 527 + 352 for the delivered batch + 8 x 16 = 1,534, which is 1,536 MiB in whole blocks.

Invariants:
- No pixel is decoded, and no GPU is needed.
- If a step has several operators, each except the last counts with the size of the samples before
  or after the step, whichever is larger.
- The estimate leaves out the CUDA context, scratch memory of kernels and of the hardware decoder,
  and batches that the trainer keeps.
"""

import logging
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ByteSize

from gpupipe.dataset.spec import Spec
from gpupipe.engines.base import Job
from gpupipe.engines.dali.field_readers import open_fields
from gpupipe.engines.dali.lowering import Lowering, Sizes, delivered_dtype
from gpupipe.engines.dali.reader import find_sizes, make_reader
from gpupipe.errors import EngineError
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.sampling.sampler import Plan

_log = logging.getLogger("gpupipe")
PADDING = 16 * 2**20
"""Bytes per thread: the default of device_memory_padding in DALI 2.4."""
BLOCK = 64 * 2**20
"""Bytes by which DALI's pool grows on a GPU of 16 GiB or more (cuda_vm_resource.h)."""
_SAMPLES = 64
_DEVIATIONS = 4.0


@dataclass(frozen=True)
class Need:
    """How much GPU memory each of N samples needs.

    Attributes:
        outputs: The bytes of the outputs of all operators, for each sample, (N,).
        delivered: The bytes of the delivered fields, for each sample, (N,).
    """

    outputs: NDArray[np.float64]
    delivered: NDArray[np.float64]

    def of(self, batch_size: int, prefetch: int, threads: int) -> int:
        """Return the bytes that a job needs on the GPU, in whole blocks of 64 MiB.

        Args:
            batch_size: Samples per batch.
            prefetch: How many batches are in progress.
            threads: How many threads the decoder has.
        """
        total = (
            prefetch * _estimate_batch(self.outputs, batch_size)
            + _estimate_batch(self.delivered, batch_size)
            + threads * PADDING
        )
        return int(-(-total // BLOCK)) * BLOCK


def _estimate_batch(samples: NDArray[np.float64], batch_size: int) -> float:
    """Return an upper estimate of the bytes of a batch: the mean plus four standard deviations.

    `samples` has the bytes of single samples, (N,). The estimate is at most `batch_size` times the
    largest of them.
    """
    expected = batch_size * samples.mean() + _DEVIATIONS * samples.std() * batch_size**0.5
    return float(min(expected, batch_size * samples.max()))


def check_memory(job: Job, allowed: int, may_cut: bool) -> None:
    """Raise EngineError if `job` needs more than `allowed` bytes on a GPU.

    The function reads the headers of up to 64 samples. If it can read none, it logs a warning.

    Args:
        job: The job, before it runs.
        allowed: `loader.gpu_memory` in bytes.
        may_cut: Whether the decoder may decode a region of an image.
    """
    need = estimate_need(job, may_cut)
    if need is None:
        _log.warning(
            "loader.gpu_memory is not checked: none of the samples that were tried can be read"
        )
        return
    loader = job.loader
    needed = need.of(loader.batch_size, loader.prefetch, job.threads)
    if needed <= allowed:
        return
    batch = _readable(_estimate_batch(need.outputs, loader.batch_size))
    delivered = _readable(_estimate_batch(need.delivered, loader.batch_size))
    raise EngineError(
        f"loader.gpu_memory={_readable(allowed)}, but DALI needs about {_readable(needed)} on the "
        f"GPU: {loader.prefetch} x {batch} for the batches that are being "
        f"made, {delivered} for the one that is delivered, {_readable(PADDING)} for each of "
        f"{job.threads} threads. {_advice(need, job, allowed)}"
    )


def _advice(need: Need, job: Job, allowed: int) -> str:
    loader = job.loader
    for prefetch in dict.fromkeys((loader.prefetch, 1)):
        needed = partial(need.of, prefetch=prefetch, threads=job.threads)
        if size := bisect_right(range(1, loader.batch_size + 1), allowed, key=needed):
            ahead = "" if prefetch == loader.prefetch else f" with loader.prefetch={prefetch}"
            return f"loader.batch_size={size} would fit{ahead}"
    return "Not even a batch of one fits: take fewer loader.threads, or more memory"


def _readable(size: float) -> str:
    return ByteSize(int(size)).human_readable()


def estimate_need(job: Job, may_cut: bool) -> Need | None:
    """Return the memory needs of up to 64 samples spread evenly over the index.

    Returns:
        The needs, or None if no sample can be read.
    """
    lowering = Lowering(job, "gpu", may_cut)
    count = len(job.index)
    rows = np.unique(np.linspace(0, count - 1, min(count, _SAMPLES)).astype(np.int64))
    ids = job.index.ids_of(rows)
    reader = make_reader(lowering, open_fields(job), False)
    reader.start(Plan(0, np.array([id]), 1, False) for id in ids)
    needs = []
    for read in reader:
        if read.error is None:
            with suppress(SampleIncompatibleError):
                needs.append(_estimate_sample(lowering, read.plan, find_sizes(job, read)))
    return Need(*np.array(needs).T) if needs else None


def _estimate_sample(lowering: Lowering, plan: Plan, size: Sizes) -> tuple[float, float]:
    """Return two sizes in bytes: of all operators' outputs for a sample, and of its delivered data.

    `plan` has this sample alone, and `size` is its size. Raises SampleIncompatibleError if a step
    cannot handle the sample.
    """
    job, pipeline, total, delivered = lowering.job, lowering.job.pipeline, 0.0, 0.0
    for name, tracer in lowering.trace(plan, size).items():
        source = pipeline.source_of(name)
        spec, first = pipeline.fields[source], size[source]
        dtype, is_delivered = delivered_dtype(job, name), name in pipeline.outputs
        last = _bytes(pipeline.output_spec_of(name), tracer.size, dtype) if is_delivered else 0.0
        delivered += last
        if name == source and not spec.encoded:
            total += _bytes(spec, first, spec.dtype)
        emitted = tracer.subgraph().emitted
        for position, operator in enumerate(emitted):
            if is_delivered and (operator is emitted[-1] or not operator.steps):
                total += last
                continue
            key = operator.steps[-1]
            entry, before, after = tracer.history[key]
            if operator.op.startswith("decoders."):
                total += _bytes(entry.output_spec, first, tracer.decoding.dtype)
                continue
            has_more = any(key in other.steps for other in emitted[position + 1 :])
            largest = max(before, after, key=np.prod) if has_more else after
            total += _bytes(entry.output_spec, largest, entry.output_spec.dtype)
    return total, delivered


def _bytes(spec: Spec, size: Any, dtype: str) -> float:
    """Return the bytes of an array of `spec` in `dtype`; `size` has its length on spatial axes."""
    others = [n for axis, n in zip(spec.layout, spec.shape, strict=True) if axis not in spec.space]
    # many operators compute float16 in float32
    item = 4 if dtype in ("float16", "bfloat16") else np.dtype(dtype).itemsize
    return float(
        np.prod(np.asarray(size, np.float64).reshape(-1)) * np.prod([n or 1 for n in others]) * item
    )
