"""A job as a DALI graph: which inputs it has, which operators, what comes out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.engines import dali_ops as ops
from gpupipe.engines.base import Job
from gpupipe.engines.dali_image import Emitted, FusingImage
from gpupipe.errors import EngineError
from gpupipe.step import NoLowering

Device = Literal["cpu", "gpu"]
Source = Callable[[], list[Any]]


@dataclass(frozen=True)
class Input:
    """An input of the graph: parameter `name` of the pipeline's step number `step`, `ndim` axes a sample."""

    step: int
    name: str
    ndim: int
    dtype: Any


@dataclass(frozen=True)
class Graph:
    """A DALI pipeline, its inputs behind the paths, and what its operators do."""

    pipe: Any
    inputs: list[Input]
    emitted: list[Emitted]


class _Parameters(Mapping[str, Any]):
    """The parameters of one step: p[name] is a DataNode, and only what a step asks for becomes an input."""

    def __init__(self, step: int, sample: dict[str, NDArray[Any]], nodes: Mapping[tuple[int, str], Any] | None, inputs: list[Input]) -> None:
        self._step, self._sample, self._nodes, self._inputs = step, sample, nodes, inputs
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if self._nodes is not None:
            return self._nodes[self._step, name]
        if name not in self._made:
            array = self._sample[name]
            self._inputs.append(Input(self._step, name, array.ndim - 1, types.INT32 if array.dtype == np.int32 else types.FLOAT64))
            self._made[name] = fn.external_source(dtype=self._inputs[-1].dtype, ndim=self._inputs[-1].ndim)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sample)

    def __len__(self) -> int:
        return len(self._sample)


def build(job: Job, device_id: int | None, region_decode: bool, source: Source) -> Graph:
    """The built pipeline of a job. `source` is called for each batch: the paths, then an array for each of the inputs.

    Raises EngineError where DALI refuses.
    """
    device: Device = "cpu" if device_id is None else "gpu"
    inputs = inputs_of(job, device)
    try:
        pipe = Pipeline(
            batch_size=job.loader.batch_size,
            num_threads=job.threads,
            device_id=device_id,
            prefetch_queue_depth=job.loader.prefetch,
            exec_dynamic=True,
        )
        with pipe:
            dtypes, ndims = [types.UINT8, *(i.dtype for i in inputs)], [1, *(i.ndim for i in inputs)]
            paths, *values = fn.external_source(source, num_outputs=1 + len(inputs), dtype=dtypes, ndim=ndims)
            nodes = {(i.step, i.name): v for i, v in zip(inputs, values, strict=True)}
            image, output = _lower(job, device, region_decode, paths, nodes, [])
            pipe.set_outputs(output)
        pipe.enable_api_check(False)
        pipe.build()
    except (RuntimeError, TypeError, ValueError) as e:
        raise EngineError(f"DALI cannot build pipeline '{job.pipeline.name}' on the {device}: {e}") from e
    return Graph(pipe, inputs, image.emitted)


def inputs_of(job: Job, device: Device) -> list[Input]:
    """The parameters that the steps of a job use on a device, found by lowering it once without building it."""
    inputs: list[Input] = []
    emitted_of(job, device, True, inputs)
    return inputs


def emitted_of(job: Job, device: Device, region_decode: bool, inputs: list[Input] | None = None) -> list[Emitted]:
    """The operators of a job on a device; needs no such device."""
    with Pipeline(batch_size=1, num_threads=1, device_id=None):
        paths = fn.external_source(dtype=types.UINT8, ndim=1)
        return _lower(job, device, region_decode, paths, None, [] if inputs is None else inputs)[0].emitted


def _lower(
    job: Job, device: Device, region_decode: bool, paths: Any, nodes: Mapping[tuple[int, str], Any] | None, inputs: list[Input]
) -> tuple[FusingImage, Any]:
    options = {"hw_decoder_load": job.loader.hw_decoder_load} if device == "gpu" else {}
    image = FusingImage(ops.read(paths), device, region_decode, options)
    for number, entry in enumerate(job.pipeline.entries):
        image.spec, image.step = entry.given, entry.key
        try:
            entry.step.dali(image, _Parameters(number, entry.parameters(0, 0, np.zeros(1, np.int64)), nodes, inputs))
        except NoLowering as e:
            raise EngineError(f"{entry.where}: {e}; it cannot run on the DALI engine") from e
    image.spec, image.step = job.pipeline.made, ""
    return image, image.finish(_delivered(job), "HWC" if job.loader.memory_format == "channels_last" else "CHW")


def _delivered(job: Job) -> str:
    """The dtype that DALI delivers: it has no bfloat16, which is made of float32 at the very end."""
    wanted = job.loader.dtype or job.pipeline.made.dtype
    return "float32" if wanted == "bfloat16" else wanted
