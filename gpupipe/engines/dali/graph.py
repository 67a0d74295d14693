"""Turns a job into a DALI graph: its operators, its inputs for each batch, and its outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from gpupipe.engines.base import LoadSpec
from gpupipe.engines.dali.array import ArrayImage, array_form, some_size
from gpupipe.engines.dali.image import FusingImage
from gpupipe.engines.dali.node import Feed
from gpupipe.engines.dali.pending_ops import Decoding, Emitted
from gpupipe.errors import EngineError
from gpupipe.pipeline.pipeline import Entry
from gpupipe.pipeline.step import NoLowering, SampleIncompatible, Spec
from gpupipe.sampling.sampler import Plan

Device = Literal["cpu", "gpu"]
Source = Callable[[], list[Any]]
Arrays = list[NDArray[Any]]
Seen = Callable[[Entry, NDArray[np.float64], NDArray[np.float64]], None]
"""Called with a step, and the sizes of the samples before and after it, (B, 2) each."""

_MAX_TRIES = 1000
_DTYPES = {
    np.dtype(np.int32): types.INT32,
    np.dtype(np.float32): types.FLOAT,
    np.dtype(np.float64): types.FLOAT64,
}
_EXAMPLE_SIZE = np.full((1, 2), 4096.0)


@dataclass(frozen=True)
class Graph:
    """A built DALI pipeline and its description.

    Attributes:
        pipe: The DALI pipeline.
        emitted: Its operators, in order, field by field.
        decoding: How each field that is an image file is decoded, by field name.
    """

    pipe: Any
    emitted: list[Emitted]
    decoding: dict[str, Decoding]


class Lowering:
    """Lowers the steps of a job onto DALI operators on a device.

    Args:
        job: The job.
        device: "cpu" or "gpu".
        region_decode: Whether the decoder may decode a region of an image.
        as_it_is: Deliver the output of the last step unchanged: HWC for image files, without the
            dtype and layout conversion that `loader:` asks for.
    """

    def __init__(
        self, job: LoadSpec, device: Device, region_decode: bool, as_it_is: bool = False
    ) -> None:
        self._as_it_is = as_it_is
        self._job, self._device, self._region_decode = job, device, region_decode
        self._options = {"hw_decoder_load": job.loader.hw_decoder_load} if device == "gpu" else {}

    def graph(self, device_id: int | None, source: Source) -> Graph:
        """Build the DALI pipeline.

        Args:
            device_id: The GPU's number, or None for the CPU.
            source: DALI calls it for the inputs of each batch: the data of each field, then the
                arrays of `values`. DALI does not copy them, so `source` must keep them alive until
                the batch is delivered.

        Raises:
            EngineError: DALI cannot build the pipeline.
        """
        fed: Arrays = []
        self.emitted(fed)
        loader = self._job.loader
        try:
            pipe = Pipeline(
                batch_size=loader.batch_size,
                num_threads=self._job.threads,
                device_id=device_id,
                prefetch_queue_depth=loader.prefetch,
                set_affinity=loader.set_affinity,
                exec_dynamic=True,
            )
            with pipe:
                nodes = iter(self._inputs(source, fed))
                data = {name: next(nodes) for name in self._job.pipeline.fields}
                images, outputs = self._lower(data, lambda _: next(nodes))
                pipe.set_outputs(*outputs)
            pipe.enable_api_check(False)
            pipe.build()
        except (RuntimeError, TypeError, ValueError) as e:
            raise EngineError(
                f"DALI cannot build pipeline '{self._job.pipeline.name}' on the {self._device}: {e}"
            ) from e
        return Graph(pipe, _emitted(images), self._decoding(images))

    def _inputs(self, source: Source, fed: Arrays) -> Any:
        """One external source for all inputs: each field, and each per-sample argument in `fed`."""
        fields = [_form(spec) for spec in self._job.pipeline.fields.values()]
        dtypes = [*(dtype for dtype, _, _ in fields), *(_DTYPES[a.dtype] for a in fed)]
        ndims = [*(ndim for _, ndim, _ in fields), *(a.ndim - 1 for a in fed)]
        layouts = [*(layout for _, _, layout in fields), *([""] * len(fed))]
        return fn.external_source(
            source,
            num_outputs=len(dtypes),
            batch=True,
            dtype=dtypes,
            ndim=ndims,
            layout=layouts,
            no_copy=True,
        )

    def values(self, plan: Plan, size: dict[str, NDArray[np.float64]]) -> Arrays:
        """Compute the per-sample arguments of all operators for one batch.

        Args:
            plan: The plan of the batch.
            size: The [height, width] of each sample, (B, 2), by field; of arrays (B, axes).

        Returns:
            One array (B, ...) for each input of the graph after the fields.

        Raises:
            SampleIncompatible: A step cannot handle one of the samples.
            StepError: A plugin step failed.
        """
        fed: Arrays = []
        self._lower(None, _append_to(fed), plan, size)
        return fed

    def emitted(self, fed: Arrays | None = None) -> list[Emitted]:
        """Return the operators of the graph. It needs no GPU, even for device "gpu".

        Args:
            fed: If set, the argument arrays of an example batch of one are appended to it.
        """
        with Pipeline(batch_size=1, num_threads=1, device_id=None):
            record = _append_to([] if fed is None else fed)

            def feed(array: NDArray[Any]) -> Any:
                record(array)
                return fn.external_source(dtype=_DTYPES[array.dtype], ndim=array.ndim - 1)

            forms = {name: _form(spec) for name, spec in self._job.pipeline.fields.items()}
            data = {
                name: fn.external_source(dtype=dtype, ndim=ndim, layout=layout)
                for name, (dtype, ndim, layout) in forms.items()
            }
            return _emitted(self._lower(data, feed)[0])

    def traced(
        self, plan: Plan, size: dict[str, NDArray[np.float64]], seen: Seen
    ) -> dict[str, list[Emitted]]:
        """Return the operators by field, and report the sample sizes around each step to `seen`.

        Args:
            plan: The plan of a batch.
            size: The sizes of its samples, by field, as for `values`.
            seen: Called for each step with the sizes before and after it.

        Raises:
            SampleIncompatible: A step cannot handle one of the samples.
        """
        images, _ = self._lower(None, lambda _: None, plan, size, seen)
        return {name: image.emitted for name, image in images.items()}

    def decoding(self) -> dict[str, Decoding]:
        """Return how each image field is decoded, as Graph.decoding, without building a graph."""
        images, _ = self._lower(None, lambda _: None)
        return self._decoding(images)

    def _decoding(self, images: dict[str, Any]) -> dict[str, Decoding]:
        return {
            name: image.decoding
            for name, image in images.items()
            if self._job.pipeline.fields[name].encoded
        }

    def _lower(
        self,
        data: dict[str, Any] | None,
        feed: Feed,
        plan: Plan | None = None,
        size: dict[str, NDArray[np.float64]] | None = None,
        seen: Seen = lambda entry, before, after: None,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Apply the steps to each field, and return the images by field and the output nodes.

        Without `data` only the argument values are computed, and no operator is made.
        """
        plan = plan or self._accepted
        images, outputs = {}, []
        for name, spec in self._job.pipeline.fields.items():
            image = images[name] = self._image(
                None if data is None else data[name],
                spec,
                _example_size(spec) if size is None else size[name],
                feed,
            )
            for entry in self._job.pipeline.on(name):
                image.spec, image.step = entry.given, entry.key
                before = image.size
                try:
                    entry.lower(
                        image, entry.parameters(self._job.loader.seed, plan.epoch, plan.ids)
                    )
                except NoLowering as e:
                    raise EngineError(
                        f"{entry.where}: {e}; it cannot run on the DALI engine"
                    ) from e
                seen(entry, before, image.size)
            image.spec, image.step = self._job.pipeline.made_of(name), ""
            form = delivered(self._job, name), layout(self._job, name)
            outputs.append(image.as_it_is() if self._as_it_is else image.finish(*form))
        return images, outputs

    @cached_property
    def _accepted(self) -> Plan:
        """A plan of one sample that every step accepts. The graph is the same for all samples."""
        for id in range(_MAX_TRIES):
            plan = Plan(0, np.full(1, id, np.int64), 1, True)
            try:
                self._lower(None, lambda _: None, plan)
            except SampleIncompatible as e:
                refusal = e
            else:
                return plan
        raise EngineError(
            f"a step refuses each of {_MAX_TRIES:,} samples of which all else is unknown: {refusal}"
        )

    def _image(self, data: Any, spec: Spec, size: NDArray[np.float64], feed: Feed) -> Any:
        if not spec.encoded:
            return ArrayImage(data, size, feed, self._device, spec)
        return FusingImage(data, size, feed, self._device, self._region_decode, self._options)


def cuts(job: LoadSpec) -> bool:
    """Whether the job decodes image regions if the decoder can do that."""
    return any(
        emitted.op == "decoders.image_slice" for emitted in Lowering(job, "gpu", True).emitted()
    )


def _emitted(images: dict[str, Any]) -> list[Emitted]:
    return [emitted for image in images.values() for emitted in image.emitted]


def _append_to(fed: Arrays) -> Feed:
    return lambda array: fed.append(np.ascontiguousarray(array))


def _form(spec: Spec) -> tuple[Any, int, str]:
    """The dtype, ndim and layout with which a field enters DALI."""
    return (types.UINT8, 1, "") if spec.encoded else array_form(spec)


def _example_size(spec: Spec) -> NDArray[np.float64]:
    return _EXAMPLE_SIZE if spec.encoded else some_size(spec)


def delivered(job: LoadSpec, name: str) -> str:
    """Return the dtype in which DALI delivers a field.

    DALI has no bfloat16: it delivers float32, and the engine converts that in torch.
    """
    dtype = job.pipeline.made_of(name).dtype
    wanted = job.loader.dtype or dtype if name == job.pipeline.main else dtype
    return "float32" if wanted == "bfloat16" else wanted


def layout(job: LoadSpec, name: str) -> Literal["HWC", "CHW"]:
    """Return the layout in which DALI delivers a field that is an image file.

    The layout is HWC for `memory_format: channels_last`, else CHW.
    """
    return (
        "HWC"
        if job.loader.memory_format == "channels_last" and job.pipeline.fields[name].encoded
        else "CHW"
    )
