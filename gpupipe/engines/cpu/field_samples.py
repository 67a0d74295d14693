"""What was read of the fields of a batch: images, arrays, or files that no one has opened yet."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpupipe.annotations.rows import UNKNOWN, UPRIGHT
from gpupipe.dataset.reading import FileSet
from gpupipe.decoded_cache.decoded_cache import CachedSample
from gpupipe.decoders.chain import EncodedImage
from gpupipe.engines.cpu.program import Content


@dataclass
class CachedImage:
    """An image of a field whose decoded images the cache keeps.

    Attributes:
        sample: The cache's entry for the image.
        content: The cached pixels, or the image file if the cache does not have them yet.
        size: [height, width] of the decoded image, before the steps that follow.
    """

    sample: CachedSample
    content: EncodedImage | NDArray[np.uint8]
    size: tuple[int, int]


Image = EncodedImage | CachedImage


@dataclass(frozen=True)
class FieldSamples:
    """What was read of one field, for several samples. Without an object of Python for each file.

    Attributes:
        contents: The image, array or bytes of each sample; None for those that are not read, or
            are in `files`.
        sizes: [height, width] of each image or array, (N, 2); [0, 0] of what has none.
        files: The files of the samples, in which plain images of a field that a step decodes stay;
            None if the field is read in another way.
        positions: The position in `files` of each sample; None for 0 to N - 1.
    """

    contents: list[Content | CachedImage | None]
    sizes: NDArray[np.float64]
    files: FileSet | None = None
    positions: NDArray[np.int64] | None = None

    @classmethod
    def of_unread(cls, count: int, files: FileSet | None = None) -> "FieldSamples":
        """Return an object for `count` samples, of which none is read."""
        return cls([None] * count, np.zeros((count, 2)), files)

    def put(self, rows: range, part: "FieldSamples") -> None:
        """Put the samples of `part` in the place of the successive samples `rows`."""
        self.contents[rows.start : rows.stop] = part.contents
        self.sizes[rows.start : rows.stop] = part.sizes

    def take(self, row: int) -> Content | CachedImage | None:
        """Return a sample, and drop it here."""
        content, self.contents[row] = self.contents[row], None
        if content is not None or self.files is None:
            return content
        data = self.files.take(row if self.positions is None else int(self.positions[row]))
        return None if data is None else np.frombuffer(data, np.uint8)

    def find_orientations(self, rows: Sequence[int]) -> list[int]:
        """Return the EXIF orientations of image files; UNKNOWN for what is no opened file."""
        if self.files is not None and self.contents.count(None) == len(self.contents):
            return [UPRIGHT] * len(rows)
        return [self._find_orientation(row) for row in rows]

    def _find_orientation(self, row: int) -> int:
        content = self.contents[row]
        if isinstance(content, CachedImage):
            content = content.content
        if isinstance(content, EncodedImage):
            return content.header.orientation
        if isinstance(content, np.ndarray):
            return UPRIGHT if content.ndim == 1 else UNKNOWN
        return UPRIGHT if content is None and self.files is not None else UNKNOWN

    def select(self, rows: Sequence[int]) -> "FieldSamples":
        """Return the samples in `rows`, which are in order."""
        if len(rows) == len(self.contents):
            return self
        contents = [self.contents[row] for row in rows]
        positions = None if self.files is None else np.array(rows, np.int64)
        return FieldSamples(contents, self.sizes[list(rows)], self.files, positions)


def find_size(content: Content | CachedImage) -> tuple[int, int]:
    """Return [height, width] of an image or array; [0, 0] of what has none, such as bytes."""
    if isinstance(content, Image):
        return content.size
    if isinstance(content, np.ndarray):
        return content.shape[0], content.shape[1]
    return (content.shape[-2], content.shape[-1]) if content.ndim > 2 else (0, 0)
