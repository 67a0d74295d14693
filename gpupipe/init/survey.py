"""Reads the index of a data set and a few of its samples: how many, which sizes, which classes."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Progress, find_source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.init.detect import Detected

MAX_LOOKED_AT = 64
_GRAY = ("1", "L", "LA", "I", "I;16", "I;16B")


@dataclass(frozen=True)
class Survey:
    """What a data set holds.

    Attributes:
        count: The number of samples.
        classes: The names of the classes.
        sizes: [height, width] of some images; empty for arrays.
        is_gray: Whether all of these images have one channel.
        num_unreadable: How many of the images could not be read.
        spec: The spec of the first field, for arrays; None for images.
        smallest: The least length along each axis of space, for arrays that differ; else empty.
    """

    count: int
    classes: Sequence[str]
    sizes: Sequence[tuple[int, int]] = ()
    is_gray: bool = False
    num_unreadable: int = 0
    spec: Spec | None = None
    smallest: Sequence[int] = ()


def survey(detected: Detected, progress: Progress = ignore_progress) -> Survey:
    """Look at the data that a source reads.

    Raises:
        DataError: The source cannot read it.
    """
    source: Any = find_source(detected.source).model_validate(detected.options)
    index: Index = source.index(progress)
    spec = source.specs()[index.main]
    rows = np.unique(np.linspace(0, len(index) - 1, MAX_LOOKED_AT).astype(int)).tolist()
    if not spec.encoded:
        return Survey(len(index), index.classes, spec=spec, smallest=_smallest(index, spec))
    headers = [_read_header(index, row) for row in rows]
    readable = [header for header in headers if header is not None]
    return Survey(
        len(index),
        index.classes,
        [size for size, _ in readable],
        bool(readable) and all(mode in _GRAY for _, mode in readable),
        len(headers) - len(readable),
    )


def _read_header(index: Index, row: int) -> tuple[tuple[int, int], str] | None:
    """Return ([height, width], Pillow's mode) of an image; None if it cannot be read."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(index.read(row).tobytes())) as image:
            return (image.height, image.width), image.mode
    except (OSError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return None


def _smallest(index: Index, spec: Spec) -> list[int]:
    array = index.columns[index.main].array
    if array is None or array.shapes is None:
        return []
    axes = [spec.layout.index(letter) for letter in spec.space]
    return [int(n) for n in array.shapes.min(axis=0)[axes]]
