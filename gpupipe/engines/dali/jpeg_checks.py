"""Checks of JPEGs before a GPU decodes them: their end marker, and their compressed data.

`check_ends`: nvJPEG's hardware engine may report a whole batch as decoded although one of its files
is cut off. The missing pixels then come out as garbage. DALI's CPU decoder raises an error, so it
needs no check.

`looks_damaged`: the nvJPEG of CUDA 12 may crash on damaged data; the release notes of nvJPEG 13.0
say that it no longer does. So a CPU decodes these files, as in the other engines, with the same
pixels. The check looks at bytes, and decodes no Huffman code: that would take as long as decoding
the image on a CPU. A file is suspicious in these cases:

- A marker that cannot follow compressed data, or an end marker that is not in its place.
- Restart markers out of order, or without a restart interval: something is missing or exchanged.
- 512 zero bytes in a row, such as a sector of a disk that was never written. The compressed data of
  a plain white image may have them too.

The check cannot see changes that leave the markers as they are, such as a flipped bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

START = b"\xff\xd8\xff"
END = b"\xff\xd9"
TAIL_BYTES = 64
"""How many last bytes are searched first. Most files end with the marker, or little padding."""
_CHUNK = 1 << 14
"""How many bytes are searched at a time, from the end backwards."""
_FILL, _SCAN, _END, _INTERVAL = 0xFF, 0xDA, 0xD9, 0xDD
_WITHOUT_LENGTH = (0x01, *range(0xD0, 0xDA))
"""TEM, RST0 to RST7, SOI and EOI: markers that no segment follows (ITU-T T.81, table B.1)."""
_SECTOR = bytes(512)
_BETWEEN_SCANS = frozenset((0xC4, 0xCC, 0xDB, 0xDC, _INTERVAL, 0xFE, *range(0xE0, 0xF0)))
"""DHT, DAC, DQT, DNL, DRI, COM and APPn: segments that may follow the data of a scan."""
_IS_RESTART = np.zeros(256, np.bool_)
_IS_RESTART[0xD0:0xD8] = True
_IS_MARKER = np.ones(256, np.bool_)
_IS_MARKER[[0, _FILL]] = False


class CutOffError(RuntimeError):
    """A JPEG of a batch has no end marker."""


def check_ends(batch: Sequence[Any]) -> None:
    """Raise CutOffError if a sample begins as a JPEG and has no end marker after its header.

    The check takes 1 microsecond per file, or 18 if more than 64 bytes follow the marker.

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

    The search goes backwards and stops at the first scan. Within scans, 0xFF is followed by 0x00
    unless it begins a marker. The header may hold a thumbnail, which is a JPEG with an end marker
    of its own.
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

    The check takes 0.5 microseconds per kB; benchmarks/jpeg_checks.py measures it.

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
    """Return the position and the code of each possible marker, from position `first` on."""
    positions = np.flatnonzero(content[first:-1] == _FILL) + first
    codes = content[positions + 1]
    is_marker = _IS_MARKER[codes]
    return list(zip(positions[is_marker].tolist(), codes[is_marker].tolist(), strict=True))
