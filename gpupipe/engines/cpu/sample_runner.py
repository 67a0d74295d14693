"""Runs the programs of a batch on its samples, several in one call where they can be prepared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.engines.cpu.cached_image import CachedImage, run_cached
from gpupipe.engines.cpu.preparation import run_tasks
from gpupipe.engines.cpu.program import Program
from gpupipe.engines.cpu.scratch import scratch
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.runtime import tracing

_MOST_PIXELS = 1 << 22
"""About so many are in one call, so that it can be cancelled soon."""


@dataclass(frozen=True)
class _Prepared:
    row: int
    name: str
    content: Any
    work: Any


@dataclass(frozen=True)
class SampleRunner:
    """Runs the programs of a batch.

    Attributes:
        pipeline: The fields, and their views.
        programs: The program of each field and view.
        cache: The decoded cache, or None.
        keep: Gets the row of a sample that failed, and the error.
        is_cancelled: Returns whether nobody waits for the samples any more.
        key: The batch, for the trace.
    """

    pipeline: Pipeline
    programs: Mapping[str, Program]
    cache: DecodedCache | None
    keep: Callable[[int, Exception], None]
    is_cancelled: Callable[[], bool]
    key: str

    @property
    def prepares(self) -> bool:
        """Whether several samples can run in one call."""
        return any(program.preparation is not None for program in self.programs.values())

    def run(self, samples: Mapping[int, Mapping[str, Any]]) -> None:
        """Run samples: the contents of their fields, by row."""
        prepared: list[_Prepared] = []
        pixels = 0
        for row, contents in samples.items():
            if self.is_cancelled():
                return
            scratch.begin_sample()
            try:
                with tracing.span("sample", "loader", batch=self.key, row=row):
                    added = self._run_or_prepare(row, contents)
            except Exception as e:
                self.keep(row, e)
                continue
            prepared += added
            pixels += sum(prod(part.content.size) for part in added)
            if pixels > _MOST_PIXELS:
                self._run_prepared(prepared)
                prepared, pixels = [], 0
        if prepared:
            self._run_prepared(prepared)

    def _run_or_prepare(self, row: int, contents: Mapping[str, Any]) -> list[_Prepared]:
        """Run what cannot be prepared of a sample; return the rest."""
        prepared = []
        for name, content in contents.items():
            work = self._prepare(name, content, row)
            if work is None:
                self._run_field(name, content, row)
            else:
                prepared.append(_Prepared(row, name, content, work))
        return prepared

    def _prepare(self, name: str, content: Any, row: int) -> Any:
        """Return the work of all calls that a field needs, or None."""
        if not isinstance(content, CachedImage):
            return self.programs[name].prepare(content, row)
        if content.file is not None:
            return None
        return self.programs[name].prepare(content.sample.pixels, row)

    def _run_field(self, name: str, content: Any, row: int) -> None:
        program = self.programs[name]
        if isinstance(content, CachedImage):
            pixels = run_cached(program, content, row, self.cache)
        else:
            pixels = program.run(content, row)
        for view in self.pipeline.views_of(name):
            self.programs[view].run(pixels, row)

    def _run_prepared(self, prepared: list[_Prepared]) -> None:
        try:
            are_done = run_tasks([part.work for part in prepared])
        except Exception:  # such as MemoryError: a sample that runs alone says what it lacks
            are_done = [False] * len(prepared)
        for part, is_done in zip(prepared, are_done, strict=True):
            scratch.begin_sample()
            try:
                if is_done:
                    self.programs[part.name].finish(part.row)
                else:
                    self._run_field(part.name, part.content, part.row)
            except Exception as e:
                self.keep(part.row, e)
