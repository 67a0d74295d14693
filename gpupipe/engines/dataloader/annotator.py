"""Annotator: moves the boxes and points of a work item before any of its images is decoded."""

from collections.abc import Mapping, Sequence

import numpy as np

from gpupipe.annotations.batch_annotations import BatchAnnotations
from gpupipe.annotations.rows import UNKNOWN, find_orientations
from gpupipe.dataset.columns import Column, read_bytes
from gpupipe.decoded_cache.decoded_cache import DecodedCache
from gpupipe.decoders.chain import DecoderChain
from gpupipe.engines.dataloader.failed_samples import for_each
from gpupipe.engines.dataloader.work_item import Recipe, WorkItem
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.pipeline.step import SampleIncompatibleError
from gpupipe.steps.decode import Decode


class Annotator:
    """Moves the annotations of work items of one phase.

    Args:
        pipeline: The pipeline of the phase.
        recipes: How the worker makes its fields.
        decoders: What opens image files. Opened files stay in the work item.
        cache: The decoded cache, or None.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        recipes: Sequence[Recipe],
        decoders: DecoderChain,
        cache: DecodedCache | None,
    ) -> None:
        self._pipeline, self._recipes = pipeline, recipes
        self._decoders, self._cache = decoders, cache

    def annotate(
        self, item: WorkItem, rows: list[int], failed: dict[int, str]
    ) -> tuple[list[int], BatchAnnotations | None]:
        """Move the annotations of the samples through all steps, before any image is decoded.

        Args:
            item: The work item. Its image files are opened.
            rows: The samples.
            failed: The function adds why samples failed, by row.

        Returns:
            The samples that did not fail, and their annotations; None if all failed.
        """
        sizes = for_each(rows, lambda row: self._find_sizes(item, row), failed)
        rows = list(sizes)
        try:
            return rows, self._annotate_rows(item, rows, sizes) if rows else None
        except SampleIncompatibleError:
            rows = list(for_each(rows, lambda row: self._annotate_rows(item, [row], sizes), failed))
            return rows, self._annotate_rows(item, rows, sizes) if rows else None

    def _annotate_rows(
        self, item: WorkItem, rows: list[int], sizes: Mapping[int, Mapping[str, tuple[int, ...]]]
    ) -> BatchAnnotations:
        """Move the annotations of some samples. `sizes` has those of `_find_sizes`, by row."""
        part, pipeline = item.select(rows), self._pipeline
        assert part.annotations is not None
        steps = {
            name: list(zip(pipeline.entries_on(name), drawn, strict=True))
            for name, drawn in part.parameters.items()
        }
        of_part = {
            name: np.array([sizes[row][name] for row in rows], np.float64)
            for name in sizes[rows[0]]
        }
        known = {
            name: [
                part.opened[name, n].header.orientation if (name, n) in part.opened else UNKNOWN
                for n in range(len(rows))
            ]
            for name in of_part
        }
        columns = dict(zip(pipeline.fields, part.columns, strict=True))
        orientations = find_orientations(pipeline, columns, np.arange(len(rows)), known)
        return part.annotations.annotate(pipeline, steps, of_part, orientations)

    def _find_sizes(self, item: WorkItem, row: int) -> dict[str, tuple[int, ...]]:
        """Return [height, width] of each image of a sample after decoding, by field."""
        sizes: dict[str, tuple[int, ...]] = {}
        for recipe, column in zip(self._recipes, item.columns, strict=True):
            first = recipe.steps[0].step if recipe.steps else None
            if column.array is not None:
                layout, shape = recipe.format.layout or "", column.array.shape_of(row)
                axes = [layout.index(axis) for axis in "HW" if axis in layout]
                sizes[recipe.name] = tuple(shape[axis] for axis in axes)
            elif isinstance(first, Decode):
                sizes[recipe.name] = self._find_size(recipe.name, first, column, row, item)
        return sizes

    def _find_size(
        self, name: str, step: Decode, column: Column, row: int, item: WorkItem
    ) -> tuple[int, ...]:
        if self._cache is not None and name in self._cache.prefixes:
            (cached,) = self._cache.get(name, column, [row])
            if cached.pixels is not None:
                return cached.size
        image = self._decoders.open(read_bytes(column, row), step.options)
        item.opened[name, row] = image
        return image.size
