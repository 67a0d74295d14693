"""AnnotationRows: all that annotations of a batch need from the index, for any process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from gpupipe.annotations.batch_annotations import BatchAnnotations, Steps, annotate
from gpupipe.dataset.annotation_columns import AnnotationColumn, take_annotations
from gpupipe.dataset.columns import Column, read_bytes
from gpupipe.dataset.index import Index
from gpupipe.decoders.chain import DecoderChain
from gpupipe.pipeline.annotations import Floats
from gpupipe.pipeline.pipeline import Pipeline

Orientations = Sequence[int] | NDArray[np.integer[Any]]
"""The EXIF orientations of image files, (B,): 1 to 8, or UNKNOWN."""
UNKNOWN, UPRIGHT = 0, 1
"""In place of an EXIF orientation: the engine has not opened the file. And the orientation of an
image that is not rotated."""


@dataclass(frozen=True)
class AnnotationRows:
    """The annotations of the samples of a batch, as they are in the index.

    Attributes:
        columns: The rows of the samples, by field of annotations.
        declared: [height, width] of the stored images by the index, (B, 2), by field of images.
    """

    columns: dict[str, AnnotationColumn]
    declared: dict[str, NDArray[np.int32]]

    @classmethod
    def of(cls, index: Index, pipeline: Pipeline, ids: NDArray[np.int64]) -> Self:
        """Return the annotations of the samples `ids` of the index."""
        index, rows = index.resolve(ids)
        columns = {name: index.annotations[name] for name in pipeline.annotations}
        return cls(
            take_annotations(columns, rows),
            {name: index.sizes[name][rows] for name in pipeline.annotated if name in index.sizes},
        )

    def select(self, chosen: Sequence[int]) -> Self:
        """Return the annotations of some of the samples: positions in the batch."""
        numbers = np.array(chosen, np.int64)
        return type(self)(
            take_annotations(self.columns, numbers),
            {name: sizes[numbers] for name, sizes in self.declared.items()},
        )

    def annotate(
        self,
        pipeline: Pipeline,
        steps: Steps,
        sizes: Mapping[str, Floats],
        orientations: Mapping[str, NDArray[np.int64]],
    ) -> BatchAnnotations:
        """Move the annotations through all steps; see `batch_annotations.annotate`."""
        return annotate(pipeline, self.columns, steps, sizes, orientations, self.declared)

    def annotate_as_declared(self, pipeline: Pipeline, steps: Steps) -> BatchAnnotations:
        """Move the annotations as if each image had its declared size, and were stored upright.

        Raises:
            KeyError: The index has no sizes of a field.
        """
        sizes = {name: self.declared[name].astype(np.float64) for name in pipeline.annotated}
        upright = {
            name: np.full(len(size), UPRIGHT)
            for name, size in sizes.items()
            if _applies_orientation(pipeline, name)
        }
        return self.annotate(pipeline, steps, sizes, upright)


def find_orientations(
    pipeline: Pipeline,
    columns: Mapping[str, Column],
    ids: NDArray[np.int64],
    known: Mapping[str, Orientations],
) -> dict[str, NDArray[np.int64]]:
    """Return EXIF orientations, int64 (B,), by each annotated field whose `decode` applies them.

    Args:
        pipeline: The steps.
        columns: The columns that read the files, by field.
        ids: The rows of the columns, int64 (B,).
        known: The orientations that the engine has read, by field; UNKNOWN for a file that it has
            not opened, which is read here.
    """
    found: dict[str, NDArray[np.int64]] = {}
    for name in pipeline.annotated:
        if _applies_orientation(pipeline, name):
            turned = np.array(known.get(name, [UNKNOWN] * len(ids)), np.int64)
            unknown = turned == UNKNOWN
            if unknown.any():
                turned[unknown] = _read_orientations(columns[name], ids[unknown])
            found[name] = turned
    return found


def _applies_orientation(pipeline: Pipeline, name: str) -> bool:
    """Return whether the first step on an image file rotates it as its EXIF tag says."""
    first: Any = next((entry.step for entry in pipeline.entries_on(name)), None)
    return bool(getattr(first, "apply_exif_orientation", False))


def _read_orientations(column: Column, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the EXIF orientation of each image; 1 for a file that no engine will decode."""
    chain, found = DecoderChain(), np.ones(len(ids), np.int64)
    for n, row in enumerate(ids.tolist()):
        try:
            found[n] = chain.find(read_bytes(column, row))[2].orientation
        except (OSError, RuntimeError, ValueError):
            continue
    return found
