"""Images whose first steps are in the decoded cache, or will be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset.columns import Column
from gpupipe.decoded_cache.decoded_cache import CachedSample, DecodedCache
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.pixels import as_packed
from gpupipe.engines.cpu.program import Program


@dataclass
class CachedImage:
    """An image that was looked up in the decoded cache.

    Attributes:
        sample: What the cache has of it.
        file: The file, which was read because the cache lacks it; else None.
        size: [height, width] of the decoded image, before the steps that follow.
    """

    sample: CachedSample
    file: EncodedImage | None
    size: tuple[int, int]


def try_to_look_up(
    cache: DecodedCache, field: str, column: Column, rows: NDArray[np.int64]
) -> list[CachedSample] | None:
    """Return what the cache has of several rows; None if one of them cannot be looked up."""
    try:
        return cache.look_up(field, column, rows.tolist())
    except Exception:  # whoever looks up the row alone says why
        return None


def run_cached(program: Program, image: CachedImage, row: int, cache: DecodedCache | None) -> Any:
    """Run a program on an image; begin with the pixels of the cache, or store them there."""
    if image.file is None:
        return program.run_rest(image.sample.pixels, row)
    pixels = program.run_beginning(image.file, row)
    if cache is not None:
        cache.store(image.sample, as_packed(pixels), image.size)
    return program.run_rest(pixels, row)
