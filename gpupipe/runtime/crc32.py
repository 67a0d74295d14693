"""The CRC-32 of many buffers: by the extension in one call without the GIL, or by zlib."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from gpupipe.runtime.compiled_extension import find_extension

_extension = find_extension()


def compute_crc32s(buffers: Sequence[Any]) -> list[int]:
    """Return the CRC-32 of each buffer, as zlib.crc32 does."""
    if _extension is not None:
        return _extension.compute_crc32s(buffers)  # type: ignore[no-any-return]
    return [zlib.crc32(buffer) for buffer in buffers]
