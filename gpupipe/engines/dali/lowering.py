"""Lowers the steps of a job onto DALI operators, and chooses the dtype and layout of outputs.

Examples:
    lowering = Lowering(job, "cpu", region_decode=True)
    lowering.inputs()                 # the inputs of the graph: its fields, then the arguments
    lowering.add_to_graph(nodes)      # once: add the operators
    lowering.arguments(plan, sizes)   # for each batch: the arguments to feed after the fields

The graph is built from a trace of one example sample, by `build_graph`. All batches have the same
operators; see operators/subgraph.py.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.base import DrawnStep, Job
from gpupipe.engines.dali.operators.array import ArrayTracer, feed_format, some_size
from gpupipe.engines.dali.operators.dtypes import as_integers, dali_type
from gpupipe.engines.dali.operators.image import ImageTracer
from gpupipe.engines.dali.operators.ops import Device
from gpupipe.engines.dali.operators.subgraph import Array, DeferredArrays, Emitted, Fed
from gpupipe.errors import EngineError
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.step import NoLoweringError, SampleIncompatibleError, Spec
from gpupipe.sampling.sampler import Plan

Arrays = list[Array | list[Array]]
"""Arguments to feed: arrays (B, ...), and lists of B arrays that may differ in shape."""
Sizes = dict[str, NDArray[np.float64]]
"""The size of every sample of a batch, by field.

For images: [height, width], (B, 2). For arrays: one number per spatial axis, (B, axes).
"""

_MAX_TRIES = 1000


class Lowering:
    """Turns the steps of a job into DALI operators on a device.

    Args:
        job: The job whose steps are lowered.
        device: "cpu" or "gpu".
        region_decode: Whether the decoder may decode a region of an image.
        as_it_is: Whether to deliver the output of the last step unchanged: HWC for image files,
            without the dtype and layout conversion that `loader:` asks for.
        done: By field name, for fields of image files: how many of the field's first steps ran
            outside of this graph. These fields enter the graph as pixels, uint8 HWC.

    Attributes:
        job: The job.
        device: The device of the operators.
    """

    def __init__(
        self,
        job: Job,
        device: Device,
        region_decode: bool,
        as_it_is: bool = False,
        done: Mapping[str, int] | None = None,
    ) -> None:
        self.job, self.device = job, device
        self._region_decode, self._as_it_is, self._done = region_decode, as_it_is, done or {}
        self._options = {"hw_decoder_load": job.loader.hw_decoder_load} if device == "gpu" else {}

    def arguments(self, plan: Plan, size: Sizes) -> Arrays:
        """Compute the per-sample arguments of all operators for one batch.

        Args:
            plan: The plan of the batch.
            size: The sizes of the batch's samples.

        Returns:
            The arrays of each input of the graph after the fields.

        Raises:
            SampleIncompatibleError: A step cannot handle one of the samples.
            StepError: A plugin step failed.
        """
        return [
            fed.make() if isinstance(fed, DeferredArrays) else np.ascontiguousarray(fed)
            for fed in _list_fed(self.trace(plan, size))
        ]

    def example_arguments(self) -> list[Fed]:
        """Return the arguments of all operators for an example batch of one sample.

        The arguments of all other batches have the same dtypes and numbers of axes.
        """
        return _list_fed(self._example)

    def operators(self) -> list[Emitted]:
        """Return the operators of the graph, field by field. Needs no GPU, even for device "gpu".

        The method adds them to a DALI pipeline that never runs. So DALI raises an error if it lacks
        an operator.
        """
        with Pipeline(batch_size=1, num_threads=1, device_id=None):
            inputs = (
                fn.external_source(dtype=dtype, ndim=ndim, layout=layout)
                for dtype, ndim, layout in self.inputs()
            )
            self.add_to_graph(inputs)
        subgraphs = (tracer.subgraph() for tracer in self._example.values())
        return [emitted for subgraph in subgraphs for emitted in subgraph.emitted]

    def inputs(self) -> list[tuple[Any, int, str]]:
        """Return the dtype, ndim and layout of each input of the graph: fields, then arguments."""
        arguments = self.example_arguments()
        return [
            *(
                (types.UINT8, 3, "HWC") if name in self._done else feed_format(spec)
                for name, spec in self.job.pipeline.fields.items()
            ),
            *((dali_type(fed.dtype.name), fed.ndim - 1, "") for fed in arguments),
        ]

    def add_to_graph(self, inputs: Iterable[Any]) -> list[Any]:
        """Add the operators to the DALI pipeline that is being built.

        Args:
            inputs: A DataNode for each input that `self.inputs` lists, in the same order.

        Returns:
            The DataNodes of the outputs, in the order of the batch.
        """
        nodes, pipeline, traced = iter(inputs), self.job.pipeline, self._example
        data = {name: next(nodes) for name in pipeline.fields}
        outputs = []
        for name in pipeline.fields:
            last = traced[name].subgraph().add_to(data[name], nodes)
            views = pipeline.views_of(name)
            outputs += [traced[view].subgraph().add_to(last, nodes) for view in views] or [last]
        return outputs

    def decodings(self) -> dict[str, DecodeOptions]:
        """Return how the image files of each field are decoded, by field name."""
        traced, fields = self._example, self.job.pipeline.fields
        return {name: traced[name].decoding for name, spec in fields.items() if spec.encoded}

    def trace(self, plan: Plan, size: Sizes | None = None) -> dict[str, Any]:
        """Trace the steps of a batch.

        Args:
            plan: The plan of the batch.
            size: The sizes of the batch's samples; example sizes by default.

        Returns:
            The tracer of each field and view, by name. The views of a field follow the field.

        Raises:
            SampleIncompatibleError: A step cannot handle one of the samples.
        """
        steps, pipeline = self.job.steps_for(plan), self.job.pipeline
        traced: dict[str, Any] = {}
        for name, spec in pipeline.fields.items():
            done = self._done.get(name, 0)
            start = some_size(spec) if size is None else size[name]
            tracer = traced[name] = self._tracer(spec, start, done == 1)
            self._lower_steps(name, tracer, steps[name][done:])
            views = pipeline.views_of(name)
            for view in views:
                traced[view] = tracer.fork()
                self._lower_steps(view, traced[view], steps[view])
            for output in () if self._as_it_is else views or (name,):
                dtype = delivered_dtype(self.job, output)
                traced[output].finish(dtype, delivered_layout(self.job, output))
        return traced

    def find_unfused(self, name: str, count: int) -> int:
        """Return how many of the first `count` steps on field `name` can run in a separate graph.

        The pixels must stay identical. So the graphs must not separate a resize from the steps that
        DALI fuses with it: resizing a region gives uint8 values that may differ by 1 from those of
        resizing the whole image.
        """
        emitted = self._example[name].subgraph().emitted
        keys = [entry.key for entry in self.job.pipeline.entries_on(name)]
        resizes = [set(e.steps) for e in emitted if e.op == "resize"]
        while any(fused & set(keys[:count]) and fused & set(keys[count:]) for fused in resizes):
            count -= 1
        return count

    def _lower_steps(self, name: str, tracer: Any, steps: Sequence[DrawnStep]) -> None:
        """Let the steps of a field or view call their primitives on its tracer, in order."""
        for entry, sampled in steps:
            tracer.spec, tracer.step = entry.input_spec, entry.key
            tracer.blame = partial(self._blame, entry)
            before = tracer.size
            with tracer.blame():
                entry.lower(tracer, sampled)
            tracer.history[entry.key] = entry, before, tracer.size
        tracer.spec, tracer.step = self.job.pipeline.output_spec_of(name), ""
        tracer.blame = nullcontext

    @contextmanager
    def _blame(self, entry: Entry) -> Iterator[None]:
        """Return a context that names the step `entry` in errors that the step's code raises."""
        try:
            with entry.blame("lower()"):
                yield
        except NoLoweringError as e:
            where = f"on DALI on the {self.device.upper()}"
            raise EngineError(f"{entry.where}: {e}; it cannot run {where}") from e

    @cached_property
    def _example(self) -> dict[str, Any]:
        """The tracers of one sample that every step accepts. All samples have the same graph."""
        for id in range(_MAX_TRIES):
            try:
                return self.trace(Plan(0, np.full(1, id, np.int64), 1, True))
            except SampleIncompatibleError as e:
                refusal = e
        raise EngineError(
            f"a step refuses each of {_MAX_TRIES:,} samples of which all else is unknown: {refusal}"
        )

    def _tracer(self, spec: Spec, size: NDArray[np.float64], is_decoded: bool) -> Any:
        if not spec.encoded:
            return ArrayTracer(size, self.device, spec)
        return ImageTracer(size, self.device, self._region_decode, self._options, is_decoded)


def delivered_dtype(job: Job, name: str) -> str:
    """Return the dtype in which DALI delivers a field.

    DALI has no bfloat16: it delivers float32, and `to_field` converts that in torch.
    """
    dtype = job.pipeline.output_spec_of(name).dtype
    delivered = job.loader.dtype or dtype if name in job.pipeline.main_outputs else dtype
    return "float32" if delivered == "bfloat16" else delivered


def delivered_layout(job: Job, name: str) -> Literal["HWC", "CHW"]:
    """Return the layout in which DALI delivers a field that is an image file.

    The layout is HWC for `memory_format: channels_last`, else CHW.
    """
    is_last = job.loader.memory_format == "channels_last" and job.pipeline.is_image_file(name)
    return "HWC" if is_last else "CHW"


def to_field(job: Job, name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Convert DALI's output of a field to its final dtype, and images to the axes (B, C, H, W)."""
    if delivered_layout(job, name) == "HWC":
        tensor = tensor.permute(0, 3, 1, 2)
    dtype = delivered_dtype(job, name)
    if as_integers(dtype) != dtype:
        tensor = tensor.view(getattr(torch, dtype))
    is_bfloat16 = job.loader.dtype == "bfloat16" and name in job.pipeline.main_outputs
    return tensor.to(torch.bfloat16) if is_bfloat16 else tensor


def decodes_regions(job: Job) -> bool:
    """Return whether the job decodes only a region of images on a GPU whose decoder can do so."""
    return any(
        emitted.op == "decoders.image_slice" for emitted in Lowering(job, "gpu", True).operators()
    )


def _list_fed(traced: Mapping[str, Any]) -> list[Fed]:
    """Return what the traced steps feed to the graph, in the order of its inputs."""
    return [fed for tracer in traced.values() for fed in tracer.subgraph().arrays]


def build_graph(lowering: Lowering, device_id: int | None, source: Callable[[], list[Any]]) -> Any:
    """Build the DALI pipeline that runs the steps of a job.

    Args:
        lowering: The lowering of the job's steps.
        device_id: The GPU's number, or None for the CPU.
        source: DALI calls it for the inputs of each batch: the data of each field, then the
            arrays of Lowering.arguments. DALI does not copy them, so `source` must keep them
            alive until the batch is delivered.

    Returns:
        The built nvidia.dali.Pipeline. Its outputs are the fields, in order.

    Raises:
        EngineError: DALI cannot build the pipeline.
    """
    inputs, job, loader = lowering.inputs(), lowering.job, lowering.job.loader
    try:
        pipe: Any = Pipeline(
            batch_size=loader.batch_size,
            num_threads=job.threads,
            device_id=device_id,
            prefetch_queue_depth=loader.prefetch,
            set_affinity=loader.set_affinity,
            exec_dynamic=True,
        )
        with pipe:
            dtypes, ndims, layouts = map(list, zip(*inputs, strict=True))
            nodes = fn.external_source(
                source,
                num_outputs=len(inputs),
                batch=True,
                dtype=dtypes,
                ndim=ndims,
                layout=layouts,
                no_copy=True,
            )
            pipe.set_outputs(*lowering.add_to_graph(nodes))
        pipe.enable_api_check(False)
        pipe.build()
    except (RuntimeError, TypeError, ValueError) as e:
        raise EngineError(
            f"DALI cannot build pipeline '{job.pipeline.name}' on the {lowering.device}: {e}"
        ) from e
    return pipe
