"""Counts annotations and what is wrong with them, for `gpupipe check --annotations`."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gpupipe.config import Config, build_index
from gpupipe.dataset.annotation_columns import offsets_of
from gpupipe.errors import GpupipeError
from gpupipe.loading.listed_files import find_missing


class AnnotationCount(NamedTuple):
    """A row of the table: what was counted, how often, and the first that is wrong or ""."""

    what: str
    number: int
    first: str
    is_wrong: bool


def count_annotations(config: Config) -> Iterator[AnnotationCount]:
    """Read all annotations of a config, look for all files of images, and yield what was found.

    Raises:
        DataError: The annotations cannot be read.
        GpupipeError: The source has no annotations.
    """
    index = build_index(config)
    if not index.annotations:
        raise GpupipeError(
            f"{config.source.name}: this source reads no annotations: they are read by 'source: "
            "coco' and 'source: voc', and from columns of lists in data.fields"
        )
    yield AnnotationCount("images", len(index), "", False)
    for name, column in index.annotations.items():
        if column.offsets is not None:
            counts = np.diff(offsets_of(index.annotations, name))
            yield AnnotationCount(f"{name} that are delivered", int(counts.sum()), "", False)
            empty = int((counts == 0).sum())
            yield AnnotationCount(f"images without {name}", empty, "", False)
    for what, count in index.extra.get("annotation_counts", {}).items():
        yield AnnotationCount(what, int(count), "", False)
    for what, (count, first) in index.extra.get("annotation_faults", {}).items():
        yield AnnotationCount(what, int(count), str(first), True)
    reason = index.faults.reasons[0] if len(index.faults) else ""
    yield AnnotationCount("images with such annotations", len(index.faults), reason, bool(reason))
    missing = find_missing(index, np.arange(len(index)))
    first = missing[0][1] if missing else ""
    yield AnnotationCount("files of images that are missing", len(missing), first, bool(missing))
