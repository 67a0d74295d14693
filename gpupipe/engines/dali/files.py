"""The image files of a batch, looked at before DALI's decoder gets them: their sizes, and what it
may not get.

DALI 2.4 sets the samples of a batch up on several threads. A sample that it refuses there throws on
one of them; if that is the calling thread, the others go on in a stack frame that is gone, and the
process ends (SIGSEGV). Only plain images reach it, therefore: see gpupipe.formats.image_header.
Pillow decodes the others, on threads of its own, and DALI gets their pixels as PNM, which it
decodes to the same numbers: so they go through the same graph, in the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali.pending_ops import Decoding
from gpupipe.errors import EngineError
from gpupipe.formats import pillow_decoder
from gpupipe.formats.image_header import ImageHeader, read_header
from gpupipe.formats.pillow_decoder import check_header

_MOST_END, _MOST_SIDE = 2**32 - 1, 2**16 - 1
_NO_MEMORY = (
    "out of memory while an image was decoded: try a smaller batch, or a lower data.max_pixels"
)


class ImageFiles:
    """The image files of one field.

    What the header of a plain JPEG says is kept by its row, in 12 bytes with the header's CRC,
    which takes a sixth of the time of reading it. A file may change between epochs: a length that
    stays is no proof. Other formats take long to decode, and their headers are read each time.
    """

    def __init__(
        self, count: int, how: Decoding, max_pixels: int | None, threads: Executor
    ) -> None:
        """count: rows of the index. how: how they are to be decoded. threads: for Pillow."""
        self._how, self._max_pixels, self._threads = how, max_pixels, threads
        self._end = np.zeros(count, np.uint32)
        self._crc = np.zeros(count, np.uint32)
        self._size = np.zeros((count, 2), np.uint16)

    def look(self, ids: NDArray[np.int64], files: Any) -> tuple[Any, NDArray[np.float64]]:
        """Make a batch safe for DALI's decoder.

        Args:
            ids: Their rows in the index.
            files: Their bytes: DALI's TensorListCPU, one-dimensional uint8.

        Returns:
            `files`, or a list if some are replaced by their pixels as PNM; and [height, width] of
            each once it is decoded, (B, 2).

        Raises:
            CannotDecode: One of them is no image, too large, or not to be decoded.
            EngineError: The memory does not suffice.
        """
        size = self._size[ids].astype(np.float64)
        known = zip(files, self._end[ids].tolist(), self._crc[ids].tolist(), strict=True)
        new = [
            n
            for n, (f, end, crc) in enumerate(known)
            if not end or crc32(memoryview(f)[:end]) != crc
        ]
        others: dict[int, str] = {}
        for n in new:
            file = memoryview(files[n])
            header = self._header(file)
            if not header.plain:
                others[n] = header.format
                continue
            size[n] = self._oriented(header)
            if header.end and header.end <= _MOST_END and size[n].max() <= _MOST_SIDE:
                self._end[ids[n]], self._crc[ids[n]] = header.end, crc32(file[: header.end])
                self._size[ids[n]] = size[n]
        if not others:
            return files, size
        replaced = list(files)
        for n, pixels in zip(others, self._decoded(files, others), strict=True):
            replaced[n], size[n] = as_pnm(pixels), pixels.shape[:2]
        return replaced, size

    def _header(self, file: Any) -> ImageHeader:
        header = read_header(file)
        check_header(header, self._max_pixels)
        return header

    def _oriented(self, header: ImageHeader) -> tuple[int, int]:
        if self._how.exif and header.orientation >= 5:
            return header.width, header.height
        return header.height, header.width

    def _decoded(self, files: Sequence[Any], others: dict[int, str]) -> list[NDArray[Any]]:
        """The pixels of files of these formats, in their order."""
        how = self._how.mode, self._how.dtype, self._how.exif, self._max_pixels

        def decode(n: int) -> NDArray[Any]:
            return pillow_decoder.decode(files[n], others[n], *how)

        try:
            return list(self._threads.map(decode, others))
        except MemoryError as e:
            raise EngineError(_NO_MEMORY) from e


def as_pnm(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels (height, width, 1 or 3) of uint8 or uint16 as a binary PGM or PPM."""
    height, width, channels = pixels.shape
    kind, highest = 6 if channels == 3 else 5, np.iinfo(pixels.dtype).max
    stored = pixels if highest == 255 else pixels.byteswap() if np.little_endian else pixels
    header = np.frombuffer(b"P%d\n%d %d\n%d\n" % (kind, width, height, highest), np.uint8)
    return np.concatenate([header, stored.reshape(-1).view(np.uint8)])
