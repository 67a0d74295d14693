"""Checks image files before DALI decodes them: their headers, and on a GPU the data of JPEGs.

The headers yield the image sizes, and show which files must not reach DALI's decoder. DALI 2.4 sets
up the samples of a batch on several threads, one of which is the thread that called DALI. A thread
that refuses a sample there throws an exception. If this is the calling thread, the exception
unwinds a stack frame that the other threads still use, and the process ends (SIGSEGV). Therefore
only plain images reach DALI's decoder: see gpupipe.decoders.image_header. PNGs about which libpng
would write to stderr do not: see gpupipe.decoders.png_chunks.

gpupipe.decoders decodes all other images, on separate threads. DALI gets their pixels as PNM files,
and decodes those to the same pixels. So all images go through the same graph, in the same batch. A
plain JPEG that has passed is checked again only if its header changes, and a PNG if any byte does;
but `check_ends` runs each time.

Two checks look at JPEGs before a GPU decodes them:

`check_ends`: nvJPEG's hardware engine may report a whole batch as decoded although one of its files
is cut off. The missing pixels then come out as garbage. DALI's CPU decoder raises an error, so it
needs no check.

`looks_damaged`: the nvJPEG of CUDA 12 may crash on damaged data; the release notes of nvJPEG 13.0
say that it no longer does. So gpupipe.decoders decodes suspicious files, to the same pixels as in
the other engines. The check looks at bytes, and decodes no Huffman code: that would take as long as
decoding the image on a CPU. A file is suspicious in these cases:

- A marker that cannot follow compressed data, or an end marker that is not in its place.
- Restart markers out of order, or without a restart interval: something is missing or exchanged.
- 512 zero bytes in a row, such as a sector of a disk that was never written. The compressed data of
  a plain white image may have them too.

The check cannot see changes that leave the markers as they are, such as a flipped bit.
"""

from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import compress
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpupipe.decoders.chain import DecodeOptions, DecoderChain
from gpupipe.decoders.decoder import Header
from gpupipe.decoders.image_header import check_header, read_header
from gpupipe.decoders.png_chunks import is_quiet
from gpupipe.decoders.pnm import as_pnm
from gpupipe.errors import EngineError

_MAX_END, _MAX_SIDE = 2**32 - 1, 2**16 - 1
_NO_MEMORY = (
    "out of memory while an image was decoded: try a smaller batch, or a lower data.max_pixels"
)
START = b"\xff\xd8\xff"
END = b"\xff\xd9"
TAIL_BYTES = 64
"""How many bytes at the end of a file are searched first. Most end markers are among them."""
_CHUNK = 1 << 14
"""How many bytes are searched at a time, from the end backwards."""
_FILL, _SCAN, _END, _INTERVAL = 0xFF, 0xDA, 0xD9, 0xDD
_WITHOUT_LENGTH = (0x01, *range(0xD0, 0xDA))
"""TEM, RST0 to RST7, SOI and EOI: markers that no segment follows (ITU-T T.81, table B.1)."""
_MIN_SLOTS, _STEP = 1 << 16, 7919
"""The least number of slots for headers, and how many slots are between the first samples of two
consecutive shards, whose ids differ in the upper 32 bits.
"""
_SECTOR = bytes(512)
_BETWEEN_SCANS = frozenset((0xC4, 0xCC, 0xDB, 0xDC, _INTERVAL, 0xFE, *range(0xE0, 0xF0)))
"""DHT, DAC, DQT, DNL, DRI, COM and APPn: segments that may follow the data of a scan."""
_IS_RESTART = np.zeros(256, np.bool_)
_IS_RESTART[0xD0:0xD8] = True
_IS_MARKER = np.ones(256, np.bool_)
_IS_MARKER[[0, _FILL]] = False


class CutOffError(RuntimeError):
    """A JPEG of a batch has no end marker."""


class ImageFiles:
    """Makes the image files of one field safe for DALI's decoder, and caches their headers.

    The cache holds 13 bytes for each JPEG and PNG that DALI may decode: the length and CRC of its
    header, or of a whole PNG, the image's size and its EXIF orientation. A CRC takes a sixth of the
    time of parsing the header of a JPEG, and a fortieth of that of checking a PNG. The CRC is
    needed because a file may change between epochs while its length stays. The headers of other
    formats are parsed each time: that takes little time, compared with decoding.
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
            count: How many rows the index has, or at first has.
            how: The color mode, the dtype, and whether to apply the EXIF orientation.
            max_pixels: Refuse images with more pixels. None means no limit.
            threads: The threads that decode the images that DALI must not decode.
            checks_jpegs: Whether to check all JPEGs. A JPEG without an end marker then raises
                CutOffError. A JPEG that has an end marker, but looks damaged, is decoded on
                `threads` instead of by DALI.
        """
        self._checks_jpegs, self._count = checks_jpegs, max(count, _MIN_SLOTS)
        self._decoding, self._max_pixels, self._threads = how, max_pixels, threads
        self._decoders = DecoderChain(max_pixels=max_pixels)
        self._end = np.zeros(self._count, np.uint32)
        self._crc = np.zeros(self._count, np.uint32)
        self._size = np.zeros((self._count, 2), np.uint16)
        self._orientation = np.ones(self._count, np.uint8)

    def make_decodable(
        self, ids: NDArray[np.int64], files: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.uint8]]:
        """Make a batch of files safe for DALI's decoder.

        Args:
            ids: The ids of the samples.
            files: The bytes of the files: a TensorListCPU of one-dimensional uint8 tensors.

        Returns:
            (files, sizes, orientations). `files` is the argument itself, or a list in which each
            image that DALI must not decode is replaced by its decoded pixels, as a PNM file.
            `sizes` has [height, width] of each decoded image, (B, 2), and `orientations` the EXIF
            orientation of each file, (B,).

        Raises:
            CannotDecodeError: A file is no image, has too many pixels, or cannot be decoded.
            CutOffError: A JPEG has no end marker, and `checks_jpegs` was set.
            EngineError: Decoding ran out of memory.
        """
        if self._checks_jpegs:
            check_ends(files)
        # Where samples come and go, ids are any numbers: two may share a slot, which the CRC shows.
        slots = (ids + (ids >> 32) * _STEP) % self._count
        size, orientation = self._size[slots].astype(np.float64), self._orientation[slots]
        cached = zip(files, self._end[slots].tolist(), self._crc[slots].tolist(), strict=True)
        others: list[int] = []
        pngs: list[int] = []
        checked: dict[int, int] = {}  # how many bytes of these samples the CRC covers
        for n, (data, end, crc) in enumerate(cached):
            file = memoryview(data)
            if end and crc32(file[:end]) == crc:
                continue
            header = read_header(file)
            check_header(header, self._max_pixels)
            is_checked = self._checks_jpegs and header.format == "JPEG"
            size[n], orientation[n] = self._oriented(header), header.orientation
            if not header.is_plain or (is_checked and looks_damaged(file)):
                others.append(n)
            elif header.format == "PNG":
                pngs.append(n)
            else:
                checked[n] = header.end
        quiet = set(compress(pngs, self._threads.map(is_quiet, [files[n] for n in pngs])))
        others += [n for n in pngs if n not in quiet]
        checked |= {n: len(memoryview(files[n])) for n in quiet}
        for n, end in checked.items():
            if 0 < end <= _MAX_END and size[n].max() <= _MAX_SIDE:
                slot = slots[n]
                self._end[slot], self._crc[slot] = end, crc32(memoryview(files[n])[:end])
                self._size[slot], self._orientation[slot] = size[n], orientation[n]
        if not others:
            return files, size, orientation
        replaced = list(files)
        decoded = self._decode(files, others)
        for n, (pixels, orientation[n]) in zip(others, decoded, strict=True):
            replaced[n], size[n] = as_pnm(pixels), pixels.shape[:2]
        return replaced, size, orientation

    def _oriented(self, header: Header) -> tuple[int, int]:
        if self._decoding.apply_exif and header.orientation >= 5:
            return header.width, header.height
        return header.height, header.width

    def _decode(self, files: Sequence[Any], others: list[int]) -> list[tuple[NDArray[Any], int]]:
        """Decode the files at the positions `others` in the batch, on the decoder threads.

        Returns the pixels and the EXIF orientation of each.
        """

        def decode(n: int) -> tuple[NDArray[Any], int]:
            image = self._decoders.open(files[n], self._decoding)
            return image.decode(self._decoding), image.header.orientation

        try:
            return list(self._threads.map(decode, others))
        except MemoryError as e:
            raise EngineError(_NO_MEMORY) from e


def can_decode(header: Header, data: Any) -> bool:
    """Return whether DALI may decode an image file with this header."""
    return header.is_plain and (header.format != "PNG" or is_quiet(data))


def check_ends(batch: Sequence[Any]) -> None:
    """Raise CutOffError if a sample begins as a JPEG and has no end marker after its header.

    The check takes 1 microsecond per file, or 18 if over 64 bytes follow the end marker.

    Args:
        batch: The encoded bytes of each sample: one-dimensional uint8 buffers in CPU memory
            (NumPy arrays, or DALI's TensorListCPU). Files that are no JPEG pass.

    Raises:
        CutOffError: A JPEG has no end marker.
    """
    for i in range(len(batch)):
        data = memoryview(batch[i])
        if END not in data[-TAIL_BYTES:].tobytes() and is_cut_off(data):
            raise CutOffError(
                f"a JPEG that was cut off: its end is missing ({len(data):,} bytes are there)"
            )


def is_cut_off(data: memoryview) -> bool:
    """Return whether a JPEG lacks its end marker. Bytes after the marker do not matter.

    The search goes backwards from the end, and stops where the first scan begins: the header before
    it may hold a thumbnail, which is a JPEG with its own end marker. Within a scan, 0xFF begins a
    marker unless 0x00 follows. So the two bytes of an end marker mean nothing else there.
    """
    if data[: len(START)].tobytes() != START:
        return False
    scan, length = find_first_scan(data), len(data)
    chunks = (
        (max(scan, length - n - _CHUNK), length - n + 1) for n in range(0, length - scan, _CHUNK)
    )
    return not any(END in data[begin:end].tobytes() for begin, end in chunks)


def find_first_scan(data: memoryview) -> int:
    """Return the position of the first start-of-scan marker, or len(data) if the header is cut off.

    Return 2, the position after the start-of-image marker, if the segments are malformed.
    """
    at = 2
    while at + 4 <= len(data):
        begin, marker, *length = data[at : at + 4].tobytes()  # DALI's buffers support only slices
        if begin != _FILL:
            return 2
        if marker == _SCAN:
            return at
        if marker == _FILL:
            at += 1
        elif marker in _WITHOUT_LENGTH:
            at += 2
        else:
            at += 2 + int.from_bytes(length, "big")
    return len(data)


def looks_damaged(data: Any) -> bool:
    """Return whether the compressed data of a JPEG look damaged.

    They do if a marker is missing or out of place, or if there are 512 zero bytes in a row. The
    check decodes nothing, and takes 0.5 microseconds per kB (benchmarks/jpeg_checks.py).

    Args:
        data: The bytes of a JPEG: a one-dimensional uint8 buffer in CPU memory.
    """
    view = memoryview(data)
    content = np.frombuffer(view, np.uint8)
    first = find_first_scan(view)
    markers = _find_markers(content, first)
    has_interval = b"\xff\xdd\x00\x04" in view[:first].tobytes()
    end, restarts = first, 0
    for at, marker in markers:
        if at < end:  # inside a segment
            continue
        if _IS_RESTART[marker]:
            if not has_interval or marker & 7 != restarts % 8:
                return True
            restarts += 1
        elif marker == _END:
            return _SECTOR in view[first:at].tobytes()
        elif marker == _SCAN or marker in _BETWEEN_SCANS:
            has_interval = has_interval or marker == _INTERVAL
            end, restarts = at + 2 + int.from_bytes(view[at + 2 : at + 4].tobytes(), "big"), 0
        else:
            return True
    return True


def _find_markers(content: NDArray[np.uint8], first: int) -> list[tuple[int, int]]:
    """Return (position, code) of each byte pair from position `first` on that may be a marker.

    In the data of a segment, such a pair may also be no marker.
    """
    positions = np.flatnonzero(content[first:-1] == _FILL) + first
    codes = content[positions + 1]
    is_marker = _IS_MARKER[codes]
    return list(zip(positions[is_marker].tolist(), codes[is_marker].tolist(), strict=True))
