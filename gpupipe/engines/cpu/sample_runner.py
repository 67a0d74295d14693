"""Runs the programs of a batch on its samples, several in one call where they can be prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.pixels import as_packed
from gpupipe.engines.cpu.preparation import Preparation, find_preparation, run_tasks
from gpupipe.engines.cpu.program import Program
from gpupipe.engines.cpu.reading import CachedImage, Fields, Image
from gpupipe.engines.cpu.rules import Content, Task
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime import tracing

_MAX_PIXELS = 1 << 22
"""About so many are in one call, so that it can be cancelled soon."""


@dataclass(frozen=True)
class _Prepared:
    row: int
    name: str
    image: Image
    task: Task


class SampleRunner:
    """Runs the programs of a batch.

    Args:
        pipeline: The fields, and their views.
        programs: The program of each field and view.
        cache: The decoded cache, or None.
        on_error: Gets the row of a sample that failed, and the error.
        is_cancelled: Returns whether nobody waits for the samples any more.
        key: The batch, for the trace.

    Attributes:
        can_prepare: Whether several samples can run in one call. While operators are recorded they
            cannot, so that each has its own time.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        programs: Mapping[str, Program],
        cache: DecodedCache | None,
        on_error: Callable[[int, Exception], None],
        is_cancelled: Callable[[], bool],
        key: str,
    ) -> None:
        self._pipeline, self._programs, self._cache = pipeline, programs, cache
        self._on_error, self._is_cancelled, self._key = on_error, is_cancelled, key
        self._preparations: dict[str, Preparation] = {}
        for name, program in programs.items():
            preparation = find_preparation(program.rest)
            if preparation is not None and not tracing.is_recording():
                self._preparations[name] = preparation
        self.can_prepare = bool(self._preparations)

    def run(self, samples: Mapping[int, Fields]) -> None:
        """Run samples: their fields, by row."""
        prepared: list[_Prepared] = []
        pixels = 0
        for row, contents in samples.items():
            if self._is_cancelled():
                return
            scratch.begin_sample()
            try:
                with tracing.span("sample", "loader", batch=self._key, row=row):
                    added = self._run_or_prepare(row, contents)
            except Exception as e:
                self._on_error(row, e)
                continue
            prepared += added
            pixels += sum(prod(part.image.size) for part in added)
            if pixels > _MAX_PIXELS:
                self._run_prepared(prepared)
                prepared, pixels = [], 0
        if prepared:
            self._run_prepared(prepared)

    def _run_or_prepare(self, row: int, contents: Fields) -> list[_Prepared]:
        """Run what cannot be prepared of a sample; return the rest."""
        prepared = []
        for name, content in contents.items():
            if isinstance(content, Image) and (task := self._prepare(name, content, row)):
                prepared.append(_Prepared(row, name, content, task))
            else:
                self._run_field(name, content, row)
        return prepared

    def _prepare(self, name: str, image: Image, row: int) -> Task | None:
        """Return the task of all operations that a field needs, or None."""
        preparation = self._preparations.get(name)
        if preparation is None:
            return None
        if isinstance(image, EncodedImage):
            return preparation.prepare(image, row)
        is_cached = not isinstance(image.content, EncodedImage)
        return preparation.prepare(image.content, row) if is_cached else None

    def _run_field(self, name: str, content: Content | CachedImage, row: int) -> None:
        program = self._programs[name]
        if not isinstance(content, CachedImage):
            pixels = program.run(content, row)
        elif not isinstance(content.content, EncodedImage):
            pixels = program.run_rest(content.content, row)
        else:
            prefix = program.run_prefix(content.content, row)
            if self._cache is not None:
                packed = cast("NDArray[np.uint8]", as_packed(prefix))
                self._cache.store(content.sample, packed, content.size)
            pixels = program.run_rest(prefix, row)
        for view in self._pipeline.views_of(name):
            self._programs[view].run(pixels, row)

    def _run_prepared(self, prepared: list[_Prepared]) -> None:
        try:
            are_done = run_tasks([part.task for part in prepared])
        except Exception:  # such as MemoryError: a sample that runs alone says what it lacks
            are_done = [False] * len(prepared)
        for part, is_done in zip(prepared, are_done, strict=True):
            scratch.begin_sample()
            try:
                if is_done:
                    self._preparations[part.name].finish(part.row)
                else:
                    self._run_field(part.name, part.image, part.row)
            except Exception as e:
                self._on_error(part.row, e)
