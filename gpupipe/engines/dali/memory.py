"""loader.gpu_memory: computes how much GPU memory a job needs before it runs.

DALI offers no limit on its memory. Its pool grows with the outputs of its operators, in blocks of
64 MiB, and shrinks only on request. The sizes of the outputs follow from the sizes of the images,
which are known before anything is decoded. The estimate is the sum of:

- the outputs of all operators for each of the `prefetch` batches in progress;
- one delivered batch, since the trainer holds a batch meanwhile;
- a buffer of 16 MiB that nvJPEG has for each thread (device_memory_padding of DALI's decoder).

It leaves out the CUDA context, scratch memory of kernels and of the hardware decoder, and batches
that the trainer keeps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ByteSize

from gpupipe.dataset.spec import Spec
from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.base import Job
from gpupipe.engines.dali.field_readers import open_fields
from gpupipe.engines.dali.lowering import Lowering, delivered_dtype
from gpupipe.engines.dali.operators.array import sizes
from gpupipe.engines.dali.reader import make_reader
from gpupipe.errors import EngineError
from gpupipe.pipeline.entry import Entry
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
    """Memory needs of N single samples.

    Attributes:
        made: Bytes of the outputs of all operators, (N,).
        out: Bytes of the delivered fields, (N,).
    """

    made: NDArray[np.float64]
    out: NDArray[np.float64]

    def of(self, batch_size: int, prefetch: int, threads: int) -> int:
        """Return the bytes that a job needs on the GPU, in whole blocks.

        Args:
            batch_size: Samples per batch.
            prefetch: How many batches are in progress.
            threads: How many threads the decoder has.
        """
        total = (
            prefetch * _estimate_batch(self.made, batch_size)
            + _estimate_batch(self.out, batch_size)
            + threads * PADDING
        )
        return int(-(-total // BLOCK)) * BLOCK


def _estimate_batch(samples: NDArray[np.float64], batch_size: int) -> float:
    """An upper estimate of the bytes of a batch: the mean plus four standard deviations.

    It is at most `batch_size` times the largest sample.
    """
    expected = batch_size * samples.mean() + _DEVIATIONS * samples.std() * batch_size**0.5
    return float(min(expected, batch_size * samples.max()))


def check_memory(job: Job, allowed: int, may_cut: bool) -> None:
    """Raise EngineError if `job` needs more than `allowed` bytes on a GPU.

    It reads the headers of up to 64 samples. If none can be read, it logs a warning.

    Args:
        job: The job.
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
    wanted = need.of(loader.batch_size, loader.prefetch, job.threads)
    if wanted <= allowed:
        return
    batch, out = (
        _words(_estimate_batch(part, loader.batch_size)) for part in (need.made, need.out)
    )
    raise EngineError(
        f"loader.gpu_memory={_words(allowed)}, but DALI needs about {_words(wanted)} on the "
        f"GPU: {loader.prefetch} x {batch} for the batches that are being "
        f"made, {out} for the one that is delivered, {_words(PADDING)} for each of "
        f"{job.threads} threads. {_advice(need, job, allowed)}"
    )


def _advice(need: Need, job: Job, allowed: int) -> str:
    loader = job.loader
    for prefetch in dict.fromkeys((loader.prefetch, 1)):

        def is_allowed(size: int, ahead: int = prefetch) -> bool:
            return need.of(size, ahead, job.threads) <= allowed

        fits = _largest(is_allowed, loader.batch_size)
        if fits:
            return f"loader.batch_size={fits} would fit" + (
                f" with loader.prefetch={prefetch}" if prefetch != loader.prefetch else ""
            )
    return "Not even a batch of one fits: take fewer loader.threads, or more memory"


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, or 0. All numbers below one that fits must fit."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _words(size: float) -> str:
    return ByteSize(int(size)).human_readable()


def estimate_need(job: Job, may_cut: bool) -> Need | None:
    """Return the needs of up to 64 samples spread evenly over the index.

    Returns:
        The needs, or None if no sample can be read.
    """
    lowering = Lowering(job, "gpu", may_cut)
    estimates = [
        _estimate_sample(job, lowering, plan, size)
        for plan, size in _sizes(job, lowering.decodings())
    ]
    needs = [n for n in estimates if n is not None]
    return Need(*np.array(needs).T) if needs else None


def _sizes(
    job: Job, decoding: dict[str, DecodeOptions]
) -> list[tuple[Plan, dict[str, NDArray[np.float64]]]]:
    """Plans of single samples, with the size of each field.

    The sizes of images come from their headers, and those of arrays from the index.
    """
    ids = np.unique(
        np.linspace(0, len(job.index) - 1, min(len(job.index), _SAMPLES)).astype(np.int64)
    )
    files = make_reader(job, decoding, open_fields(job), False)
    files.start(Plan(0, np.array([id]), 1, False) for id in ids)
    arrays = [name for name, spec in job.pipeline.fields.items() if not spec.encoded]
    return [
        (r.plan, r.size | {name: sizes(job, name, r.plan.ids) for name in arrays})
        for r in files
        if r.error is None
    ]


def _estimate_sample(
    job: Job, lowering: Lowering, plan: Plan, size: dict[str, NDArray[np.float64]]
) -> tuple[float, float] | None:
    """The bytes of all operators' outputs for a sample, and the bytes of its delivered fields.

    None if a step cannot handle the sample.
    """
    steps: dict[tuple[str, str], tuple[Entry, Any, Any]] = {}

    def seen(entry: Entry, before: Any, after: Any) -> None:
        steps[entry.field, entry.key] = entry, before, after

    try:
        operators = lowering.trace(plan, size, seen)
    except SampleIncompatibleError:
        return None
    decodings = lowering.decodings()
    made = out = 0.0
    for name, emitted in operators.items():
        source = job.pipeline.source_of(name)
        spec, first = job.pipeline.fields[source], size[source]
        final = job.pipeline.output_spec_of(name)
        entries = [e for n in (source, name) for e in job.pipeline.entries_on(n)]
        last = steps[entries[-1].field, entries[-1].key][2] if entries else first
        is_delivered = name in job.pipeline.outputs
        delivered_bytes = _bytes(final, last, delivered_dtype(job, name)) * is_delivered
        made += 0.0 if spec.encoded or name != source else _bytes(spec, first, spec.dtype)
        for position, operator in enumerate(emitted):
            if is_delivered and (operator is emitted[-1] or not operator.steps):
                made += delivered_bytes
                continue
            key = operator.steps[-1]
            entry, before, after = steps[name, key]
            has_more = any(key in other.steps for other in emitted[position + 1 :])
            is_decoder = operator.op.startswith("decoders.")
            largest = first if is_decoder else _larger(before, after) if has_more else after
            dtype = decodings[source].dtype if is_decoder else entry.output_spec.dtype
            made += _bytes(entry.output_spec, largest, dtype)
        out += delivered_bytes
    return made, out


def _larger(before: Any, after: Any) -> Any:
    return before if np.prod(before) > np.prod(after) else after


def _bytes(spec: Spec, size: Any, dtype: str) -> float:
    """The bytes of an array of `spec` with `size` along the spatial axes."""
    others = [n for axis, n in zip(spec.layout, spec.shape, strict=True) if axis not in spec.space]
    # many operators compute float16 in float32
    item = 4 if dtype in ("float16", "bfloat16") else np.dtype(dtype).itemsize
    return float(
        np.prod(np.asarray(size, np.float64).reshape(-1)) * np.prod([n or 1 for n in others]) * item
    )
