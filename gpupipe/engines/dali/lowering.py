"""Lowers the steps of a job onto DALI operators, and computes the arguments of each batch.

The same calls serve both. With DataNodes the primitives emit operators; without, they compute only
the per-sample arguments that those operators are fed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.decoders.chain import DecodeOptions
from gpupipe.engines.base import DrawnStep, Job
from gpupipe.engines.dali.delivery import delivered_dtype, delivered_layout
from gpupipe.engines.dali.operators.array import ArrayImage, feed_format, some_size
from gpupipe.engines.dali.operators.branches import Feed
from gpupipe.engines.dali.operators.image import FusingImage
from gpupipe.engines.dali.operators.pending_ops import Emitted
from gpupipe.errors import EngineError
from gpupipe.pipeline.entry import Entry
from gpupipe.pipeline.step import NoLoweringError, SampleIncompatibleError, Spec
from gpupipe.sampling.sampler import Plan

Device = Literal["cpu", "gpu"]
Arrays = list[NDArray[Any]]
Sizes = dict[str, NDArray[np.float64]]
"""The size of every sample of a batch, by field.

[height, width], (B, 2), for images; one number per spatial axis, (B, axes), for arrays.
"""
OnStep = Callable[[Entry, NDArray[np.float64], NDArray[np.float64]], None]
"""Called with a step, and the sizes of the samples before and after it, (B, 2) each."""

_MAX_TRIES = 1000
FEED_TYPES = {
    np.dtype(np.bool_): types.BOOL,
    np.dtype(np.int16): types.INT16,
    np.dtype(np.int32): types.INT32,
    np.dtype(np.float32): types.FLOAT,
    np.dtype(np.float64): types.FLOAT64,
}
"""DALI's types of per-sample arguments."""
_EXAMPLE_SIZE = np.full((1, 2), 4096.0)


class Lowering:
    """The steps of a job as DALI operators on a device.

    Args:
        job: The job.
        device: "cpu" or "gpu".
        region_decode: Whether the decoder may decode a region of an image.
        as_it_is: Deliver the output of the last step unchanged: HWC for image files, without the
            dtype and layout conversion that `loader:` asks for.
        done: How many steps of fields of image files were done before, by field. Such a field
            enters the graph as pixels, HWC of uint8.
    """

    def __init__(
        self,
        job: Job,
        device: Device,
        region_decode: bool,
        as_it_is: bool = False,
        done: Mapping[str, int] | None = None,
    ) -> None:
        self._done = done or {}
        self.device = device
        self._as_it_is = as_it_is
        self._job, self._region_decode = job, region_decode
        self._options = {"hw_decoder_load": job.loader.hw_decoder_load} if device == "gpu" else {}

    def arguments(self, plan: Plan, size: Sizes) -> Arrays:
        """Compute the per-sample arguments of all operators for one batch.

        Args:
            plan: The plan of the batch.
            size: The sizes of its samples.

        Returns:
            One array (B, ...) for each input of the graph after the fields.

        Raises:
            SampleIncompatibleError: A step cannot handle one of the samples.
            StepError: A plugin step failed.
        """
        arrays: Arrays = []
        self.lower(None, _append_to(arrays), plan, size)
        return arrays

    def example_arguments(self) -> Arrays:
        """Return the argument arrays of a batch of one, for their dtypes and numbers of axes."""
        arrays: Arrays = []
        self._emit_unfed(_append_to(arrays))
        return arrays

    def operators(self) -> list[Emitted]:
        """Return the operators of the graph, field by field. It needs no GPU, even for one."""
        images = self._emit_unfed(lambda _: None)
        return [emitted for image in images.values() for emitted in image.emitted]

    def graph_input(self, name: str) -> tuple[Any, int, str]:
        """Return the dtype, ndim and layout with which a field enters DALI."""
        spec = self._job.pipeline.fields[name]
        if name in self._done:
            return types.UINT8, 3, "HWC"
        return (types.UINT8, 1, "") if spec.encoded else feed_format(spec)

    def decodings(self) -> dict[str, DecodeOptions]:
        """Return how each field that is an image file is decoded, by field name."""
        images, _ = self.lower(None, lambda _: None)
        fields = self._job.pipeline.fields
        return {name: images[name].decoding for name, spec in fields.items() if spec.encoded}

    def trace(self, plan: Plan, size: Sizes, on_step: OnStep) -> dict[str, list[Emitted]]:
        """Return the operators by field and view, and report the sample sizes around each step.

        Args:
            plan: The plan of a batch.
            size: The sizes of its samples.
            on_step: Called for each step with the sizes before and after it.

        Raises:
            SampleIncompatibleError: A step cannot handle one of the samples.
        """
        images, _ = self.lower(None, lambda _: None, plan, size, on_step)
        return {name: image.emitted for name, image in images.items()}

    def lower(
        self,
        data: dict[str, Any] | None,
        feed: Feed,
        plan: Plan | None = None,
        size: Sizes | None = None,
        on_step: OnStep = lambda entry, before, after: None,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Apply the steps to each field and view.

        Returns the images by field and view, and the output nodes in the order of the batch.

        Without `data` only the argument values are computed, and no operator is made.
        """
        steps = self._job.steps_for(plan or self._accepted_plan)
        pipeline = self._job.pipeline
        images, outputs = {}, []
        for name, spec in pipeline.fields.items():
            images[name] = self._image(
                None if data is None else data[name],
                spec,
                _example_size(spec) if size is None else size[name],
                feed,
                self._done.get(name, 0),
            )
            self._lower_steps(name, images[name], steps[name][self._done.get(name, 0) :], on_step)
            views = pipeline.views_of(name)
            for view in views:
                images[view] = images[name].fork()
                self._lower_steps(view, images[view], steps[view], on_step)
            outputs += [self._finish(output, images[output]) for output in views or (name,)]
        return images, outputs

    def find_unfused(self, name: str, count: int) -> int:
        """Return how many of the first `count` steps can run in a graph of their own.

        The pixels are then the same to the bit as in one graph. DALI resizes a region of an image
        to other pixels than the whole image, by a level.
        """
        images, _ = self.lower(None, lambda _: None)
        keys = [entry.key for entry in self._job.pipeline.entries_on(name)]
        resizes = [set(e.steps) for e in images[name].emitted if e.op == "resize"]
        while any(fused & set(keys[:count]) and fused & set(keys[count:]) for fused in resizes):
            count -= 1
        return count

    def _lower_steps(
        self, name: str, image: Any, steps: Sequence[DrawnStep], on_step: OnStep
    ) -> None:
        """Apply steps of a field or view to its image."""
        for entry, sampled in steps:
            image.spec, image.step = entry.input_spec, entry.key
            before = image.size
            try:
                entry.lower(image, sampled)
            except NoLoweringError as e:
                where = f"on DALI on the {self.device.upper()}"
                raise EngineError(f"{entry.where}: {e}; it cannot run {where}") from e
            on_step(entry, before, image.size)
        image.spec, image.step = self._job.pipeline.output_spec_of(name), ""

    def _finish(self, name: str, image: Any) -> Any:
        """Return the DataNode that is delivered as field `name` of a batch."""
        if self._as_it_is:
            return image.as_it_is()
        return image.finish(delivered_dtype(self._job, name), delivered_layout(self._job, name))

    def _emit_unfed(self, record: Feed) -> dict[str, Any]:
        """Make the operators in a pipeline that never runs; pass each argument to `record`."""
        with Pipeline(batch_size=1, num_threads=1, device_id=None):

            def feed(array: NDArray[Any]) -> Any:
                record(array)
                return fn.external_source(dtype=FEED_TYPES[array.dtype], ndim=array.ndim - 1)

            forms = {name: self.graph_input(name) for name in self._job.pipeline.fields}
            data = {
                name: fn.external_source(dtype=dtype, ndim=ndim, layout=layout)
                for name, (dtype, ndim, layout) in forms.items()
            }
            return self.lower(data, feed)[0]

    @cached_property
    def _accepted_plan(self) -> Plan:
        """A plan of one sample that every step accepts. The graph is the same for all samples."""
        for id in range(_MAX_TRIES):
            plan = Plan(0, np.full(1, id, np.int64), 1, True)
            try:
                self.lower(None, lambda _: None, plan)
            except SampleIncompatibleError as e:
                refusal = e
            else:
                return plan
        raise EngineError(
            f"a step refuses each of {_MAX_TRIES:,} samples of which all else is unknown: {refusal}"
        )

    def _image(
        self, data: Any, spec: Spec, size: NDArray[np.float64], feed: Feed, done: int
    ) -> Any:
        if not spec.encoded:
            return ArrayImage(data, size, feed, self.device, spec)
        image = FusingImage(data, size, feed, self.device, self._region_decode, self._options)
        if done == 1:
            image.begin_decoded()
        return image


def decodes_regions(job: Job) -> bool:
    """Return whether the job decodes image regions if the decoder can do that."""
    return any(
        emitted.op == "decoders.image_slice" for emitted in Lowering(job, "gpu", True).operators()
    )


def _append_to(arrays: Arrays) -> Feed:
    return lambda array: arrays.append(np.ascontiguousarray(array))


def _example_size(spec: Spec) -> NDArray[np.float64]:
    return _EXAMPLE_SIZE if spec.encoded else some_size(spec)
