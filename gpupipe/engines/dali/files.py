"""Checks the headers of image files before DALI decodes them.

The headers yield the image sizes, and show which files must not reach DALI's decoder.

DALI 2.4 sets up the samples of a batch on several threads. A sample that DALI refuses there throws
an exception on its thread. On the calling thread the exception unwinds a stack frame that the other
threads still use, and the process ends (SIGSEGV). Therefore only plain images reach DALI's
decoder: see gpupipe.decoders.image_header.

gpupipe.decoders decodes all other images, on threads of their own. DALI gets their pixels as PNM
files, and decodes those to the same pixels. So all images go through the same graph, in the same
batch. For a GPU, gpupipe.decoders also decodes JPEGs whose compressed data look damaged: see
jpeg_checks.py. Each check runs when a header is read first, and again if the header changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import Header, Pixels
from gpupipe.decoders.image_header import check_header, read_header
from gpupipe.engines.dali.jpeg_checks import looks_damaged
from gpupipe.errors import EngineError

_MAX_END, _MAX_SIDE = 2**32 - 1, 2**16 - 1
_NO_MEMORY = (
    "out of memory while an image was decoded: try a smaller batch, or a lower data.max_pixels"
)


class ImageFiles:
    """The image files of one field, with a cache of their headers.

    The cache holds 12 bytes for each plain JPEG: the length and CRC of its header, and the image's
    size. A CRC takes a sixth of the time of parsing the header. The CRC is needed since a file may
    change between epochs and keep its length. The headers of other formats are parsed each time;
    that takes little of the time of decoding.
    """

    def __init__(
        self,
        count: int,
        how: DecodeOptions,
        max_pixels: int | None,
        threads: Executor,
        checks_jpegs: bool = False,
    ) -> None:
        """Make an empty cache.

        Args:
            count: How many rows the index has.
            how: How the files are decoded.
            max_pixels: Refuse images with more pixels. None means no limit.
            threads: The threads that decode the images that DALI must not decode.
            checks_jpegs: Whether `threads` also decode JPEGs whose compressed data look damaged.
        """
        self._checks_jpegs = checks_jpegs
        self._decoding, self._max_pixels, self._threads = how, max_pixels, threads
        self._decoders = DecoderChain(max_pixels=max_pixels)
        self._end = np.zeros(count, np.uint32)
        self._crc = np.zeros(count, np.uint32)
        self._size = np.zeros((count, 2), np.uint16)

    def make_decodable(self, ids: NDArray[np.int64], files: Any) -> tuple[Any, NDArray[np.float64]]:
        """Make a batch of files safe for DALI's decoder.

        Args:
            ids: The rows of the files in the index.
            files: The bytes of the files: a TensorListCPU of one-dimensional uint8 tensors.

        Returns:
            `files` itself, or a list in which images that are not plain are replaced by PNM files
            of their pixels. And [height, width] of each decoded image, (B, 2).

        Raises:
            CannotDecodeError: A file is no image, has too many pixels, or cannot be decoded.
            EngineError: Decoding ran out of memory.
        """
        size = self._size[ids].astype(np.float64)
        cached = zip(files, self._end[ids].tolist(), self._crc[ids].tolist(), strict=True)
        uncached = [
            n
            for n, (f, end, crc) in enumerate(cached)
            if not end or crc32(memoryview(f)[:end]) != crc
        ]
        others: list[int] = []
        for n in uncached:
            file = memoryview(files[n])
            header = self._header(file)
            is_checked = self._checks_jpegs and header.format == "JPEG"
            if not header.is_plain or (is_checked and looks_damaged(file)):
                others.append(n)
                continue
            size[n] = self._oriented(header)
            if header.end and header.end <= _MAX_END and size[n].max() <= _MAX_SIDE:
                self._end[ids[n]], self._crc[ids[n]] = header.end, crc32(file[: header.end])
                self._size[ids[n]] = size[n]
        if not others:
            return files, size
        replaced = list(files)
        for n, pixels in zip(others, self._decode(files, others), strict=True):
            replaced[n], size[n] = as_pnm(pixels), pixels.shape[:2]
        return replaced, size

    def _header(self, file: Any) -> Header:
        header = read_header(file)
        check_header(header, self._max_pixels)
        return header

    def _oriented(self, header: Header) -> tuple[int, int]:
        if self._decoding.apply_exif and header.orientation >= 5:
            return header.width, header.height
        return header.height, header.width

    def _decode(self, files: Sequence[Any], others: list[int]) -> list[NDArray[Any]]:
        """Decode the files at the positions `others` of the batch on all threads."""

        def decode(n: int) -> Pixels:
            return self._decoders.decode(files[n], self._decoding)

        try:
            return list(self._threads.map(decode, others))
        except MemoryError as e:
            raise EngineError(_NO_MEMORY) from e


def as_pnm(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Encode pixels (height, width, 1 or 3) of uint8 or uint16 as a binary PGM or PPM file."""
    height, width, channels = pixels.shape
    kind, highest = 6 if channels == 3 else 5, np.iinfo(pixels.dtype).max
    stored = pixels if highest == 255 else pixels.byteswap() if np.little_endian else pixels
    header = np.frombuffer(b"P%d\n%d %d\n%d\n" % (kind, width, height, highest), np.uint8)
    return np.concatenate([header, stored.reshape(-1).view(np.uint8)])
