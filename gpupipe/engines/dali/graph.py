"""A job as a DALI graph: which operators it has, what it is fed for each batch, what comes out."""

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
"""Takes a step, and the sizes of the samples before and after it."""

_MOST_TRIES = 1000
_DTYPES = {
    np.dtype(np.int32): types.INT32,
    np.dtype(np.float32): types.FLOAT,
    np.dtype(np.float64): types.FLOAT64,
}
_SOME_SIZE = np.full((1, 2), 4096.0)


@dataclass(frozen=True)
class Graph:
    """A DALI pipeline, and what its operators do. decoding: of the fields that are image files."""

    pipe: Any
    emitted: list[Emitted]
    decoding: dict[str, Decoding]


class Lowering:
    """How a job becomes operators on a device.

    region_decode: whether its decoder may be asked for a part of an image. as_it_is: deliver what
    the last step made, HWC where it was an image file, and not what the loader is to deliver.
    """

    def __init__(
        self, job: LoadSpec, device: Device, region_decode: bool, as_it_is: bool = False
    ) -> None:
        self._as_it_is = as_it_is
        self._job, self._device, self._region_decode = job, device, region_decode
        self._options = {"hw_decoder_load": job.loader.hw_decoder_load} if device == "gpu" else {}

    def graph(self, device_id: int | None, source: Source) -> Graph:
        """The built pipeline. `source` is called for each batch: what there is of each field, and
        then `values`. It keeps what it returns until the batch is delivered: nothing is copied.
        Raises EngineError where DALI refuses.
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
                given = iter(self._inputs(source, fed))
                data = {name: next(given) for name in self._job.pipeline.fields}
                images, outputs = self._lower(data, lambda _: next(given))
                pipe.set_outputs(*outputs)
            pipe.enable_api_check(False)
            pipe.build()
        except (RuntimeError, TypeError, ValueError) as e:
            raise EngineError(
                f"DALI cannot build pipeline '{self._job.pipeline.name}' on the {self._device}: {e}"
            ) from e
        return Graph(pipe, _emitted(images), self._decoding(images))

    def _inputs(self, source: Source, fed: Arrays) -> Any:
        """One external source for all that is given: of each field, and of each argument that
        differs from sample to sample.
        """
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
        """What the graph is fed for a plan whose samples have `size`, by field, (B, 2).

        Raises SampleIncompatible where a step cannot be done to one.
        """
        fed: Arrays = []
        self._lower(None, _into(fed), plan, size)
        return fed

    def emitted(self, fed: Arrays | None = None) -> list[Emitted]:
        """The operators; needs no such device.

        What a batch of one would be fed is appended to `fed`.
        """
        with Pipeline(batch_size=1, num_threads=1, device_id=None):
            record = _into([] if fed is None else fed)

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
        """The operators by field, for a plan whose samples have `size`. `seen` is told what each
        step makes of the sizes.

        Raises SampleIncompatible where a step cannot be done to a sample.
        """
        images, _ = self._lower(None, lambda _: None, plan, size, seen)
        return {name: image.emitted for name, image in images.items()}

    def decoding(self) -> dict[str, Decoding]:
        """Graph.decoding, without a graph."""
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
        """The steps carried out on each field: the images, and what of them is delivered."""
        plan = plan or self._accepted
        images, outputs = {}, []
        for name, spec in self._job.pipeline.fields.items():
            image = images[name] = self._image(
                None if data is None else data[name],
                spec,
                _some_size(spec) if size is None else size[name],
                feed,
            )
            for entry in self._job.pipeline.on(name):
                image.spec, image.step = entry.given, entry.key
                before = image.size
                try:
                    entry.dali(image, entry.parameters(self._job.loader.seed, plan.epoch, plan.ids))
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
        for id in range(_MOST_TRIES):
            plan = Plan(0, np.full(1, id, np.int64), 1, True)
            try:
                self._lower(None, lambda _: None, plan)
            except SampleIncompatible as e:
                refusal = e
            else:
                return plan
        raise EngineError(
            f"a step refuses each of {_MOST_TRIES:,} samples of which all else is unknown: "
            f"{refusal}"
        )

    def _image(self, data: Any, spec: Spec, size: NDArray[np.float64], feed: Feed) -> Any:
        if not spec.encoded:
            return ArrayImage(data, size, feed, self._device, spec)
        return FusingImage(data, size, feed, self._device, self._region_decode, self._options)


def cuts(job: LoadSpec) -> bool:
    """Whether the decoder would be asked for parts of images, where it can decode them."""
    return any(
        emitted.op == "decoders.image_slice" for emitted in Lowering(job, "gpu", True).emitted()
    )


def _emitted(images: dict[str, Any]) -> list[Emitted]:
    return [emitted for image in images.values() for emitted in image.emitted]


def _into(fed: Arrays) -> Feed:
    return lambda array: fed.append(np.ascontiguousarray(array))


def _form(spec: Spec) -> tuple[Any, int, str]:
    """What DALI is told of a field that it is given: dtype, axes, layout."""
    return (types.UINT8, 1, "") if spec.encoded else array_form(spec)


def _some_size(spec: Spec) -> NDArray[np.float64]:
    return _SOME_SIZE if spec.encoded else some_size(spec)


def delivered(job: LoadSpec, name: str) -> str:
    """The dtype in which DALI delivers a field: it has no bfloat16, which is made of float32 at the
    very end.
    """
    made = job.pipeline.made_of(name).dtype
    wanted = job.loader.dtype or made if name == job.pipeline.main else made
    return "float32" if wanted == "bfloat16" else wanted


def layout(job: LoadSpec, name: str) -> Literal["HWC", "CHW"]:
    """The layout in which DALI delivers a field that was an image file."""
    return (
        "HWC"
        if job.loader.memory_format == "channels_last" and job.pipeline.fields[name].encoded
        else "CHW"
    )
