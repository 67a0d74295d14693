"""Finds JPEGs whose compressed data look damaged, before a GPU decodes them.

The nvJPEG of CUDA 12 may crash on such a file: the release notes of nvJPEG 13.0 say that it no
longer does. So a CPU decodes these files, as in the other engines, with the same pixels.

The check looks at bytes, and decodes no Huffman code: that would take as long as decoding the image
on a CPU. A file is suspicious in these cases:

- A marker that cannot follow compressed data, or an end marker that is not in its place.
- Restart markers out of order, or without a restart interval: something is missing or exchanged.
- 512 zero bytes in a row, such as a sector of a disk that was never written. The compressed data of
  a plain white image may have them too.

Changes that leave the markers as they are, such as a flipped bit, are not seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.engines.dali.jpeg_end import find_first_scan

_SECTOR = bytes(512)
_FILL, _SCAN, _END, _INTERVAL = 0xFF, 0xDA, 0xD9, 0xDD
_BETWEEN_SCANS = frozenset((0xC4, 0xCC, 0xDB, 0xDC, _INTERVAL, 0xFE, *range(0xE0, 0xF0)))
"""DHT, DAC, DQT, DNL, DRI, COM and APPn: segments that may follow the data of a scan."""
_IS_RESTART = np.zeros(256, np.bool_)
_IS_RESTART[0xD0:0xD8] = True
_IS_MARKER = np.ones(256, np.bool_)
_IS_MARKER[[0, _FILL]] = False


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
    """Return the position and the code of what may be a marker, from position `first` on."""
    places = np.flatnonzero(content[first:-1] == _FILL) + first
    codes = content[places + 1]
    is_marker = _IS_MARKER[codes]
    return list(zip(places[is_marker].tolist(), codes[is_marker].tolist(), strict=True))
