"""A job as a DALI graph: which operators it has, what it is fed for each batch, what comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.engines.base import Job
from gpupipe.engines.dali_image import Feed, FusingImage
from gpupipe.engines.deferred import Emitted
from gpupipe.errors import EngineError
from gpupipe.sampler import Plan
from gpupipe.step import NoLowering

Device = Literal["cpu", "gpu"]
Source = Callable[[], list[Any]]
Arrays = list[NDArray[Any]]

_DTYPES = {np.dtype(np.int32): types.INT32, np.dtype(np.float32): types.FLOAT}
_SOME_SIZE = np.full((1, 2), 4096.0)


@dataclass(frozen=True)
class Graph:
    """A DALI pipeline, and what its operators do. exif: whether images are turned as their EXIF tag says."""

    pipe: Any
    emitted: list[Emitted]
    exif: bool


def build(job: Job, device_id: int | None, region_decode: bool, source: Source) -> Graph:
    """The built pipeline of a job. `source` is called for each batch: the files' bytes, and then `values`. It keeps what it returns
    until the batch is delivered: nothing is copied.

    Raises EngineError where DALI refuses.
    """
    device: Device = "cpu" if device_id is None else "gpu"
    fed: Arrays = []
    emitted_of(job, device, region_decode, fed)
    try:
        pipe = Pipeline(
            batch_size=job.loader.batch_size,
            num_threads=job.threads,
            device_id=device_id,
            prefetch_queue_depth=job.loader.prefetch,
            exec_dynamic=True,
        )
        with pipe:
            dtypes, ndims = [types.UINT8, *(_DTYPES[a.dtype] for a in fed)], [1, *(a.ndim - 1 for a in fed)]
            data, *nodes = fn.external_source(source, num_outputs=1 + len(fed), batch=True, dtype=dtypes, ndim=ndims, no_copy=True)
            given = iter(nodes)
            image, output = _lower(job, device, region_decode, data, lambda _: next(given))
            pipe.set_outputs(output)
        pipe.enable_api_check(False)
        pipe.build()
    except (RuntimeError, TypeError, ValueError) as e:
        raise EngineError(f"DALI cannot build pipeline '{job.pipeline.name}' on the {device}: {e}") from e
    return Graph(pipe, image.emitted, image.exif)


def values(job: Job, device: Device, region_decode: bool, plan: Plan, size: NDArray[np.float64]) -> Arrays:
    """What the graph of a job is fed for a plan whose images have `size`, (B, 2). Raises Unfit where a step cannot be done to one."""
    fed: Arrays = []
    _lower(job, device, region_decode, None, _into(fed), plan, size)
    return fed


def emitted_of(job: Job, device: Device, region_decode: bool, fed: Arrays | None = None) -> list[Emitted]:
    """The operators of a job on a device; needs no such device. What a batch of one would be fed is appended to `fed`."""
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        record = _into([] if fed is None else fed)

        def feed(array: NDArray[Any]) -> Any:
            record(array)
            return fn.external_source(dtype=_DTYPES[array.dtype], ndim=array.ndim - 1)

        return _lower(job, device, region_decode, fn.external_source(dtype=types.UINT8, ndim=1), feed)[0].emitted


def _into(fed: Arrays) -> Feed:
    return lambda array: fed.append(np.ascontiguousarray(array))


_ANY_PLAN = Plan(0, np.zeros(1, np.int64), 1, True)


def _lower(
    job: Job, device: Device, region_decode: bool, data: Any, feed: Feed, plan: Plan = _ANY_PLAN, size: NDArray[np.float64] = _SOME_SIZE
) -> tuple[FusingImage, Any]:  # fmt: skip
    options = {"hw_decoder_load": job.loader.hw_decoder_load} if device == "gpu" else {}
    image = FusingImage(data, size, feed, device, region_decode, options)
    for entry in job.pipeline.entries:
        image.spec, image.step = entry.given, entry.key
        try:
            entry.step.dali(image, entry.parameters(job.loader.seed, plan.epoch, plan.ids))
        except NoLowering as e:
            raise EngineError(f"{entry.where}: {e}; it cannot run on the DALI engine") from e
    image.spec, image.step = job.pipeline.made, ""
    return image, image.finish(_delivered(job), "HWC" if job.loader.memory_format == "channels_last" else "CHW")


def _delivered(job: Job) -> str:
    """The dtype that DALI delivers: it has no bfloat16, which is made of float32 at the very end."""
    wanted = job.loader.dtype or job.pipeline.made.dtype
    return "float32" if wanted == "bfloat16" else wanted
