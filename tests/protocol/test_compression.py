"""Parts of batches that are compressed."""

from __future__ import annotations

import pytest

from gpupipe.protocol import batch_layout, compression


@pytest.mark.parametrize("codec", compression.NAMES)
def test_a_bomb_does_not_go_off(codec: str) -> None:
    """What unpacks to more, or less, than was announced is refused."""
    packed = compression.pack(codec, bytes(batch_layout.PART_LIMIT))
    assert packed is not None
    for size in (1, batch_layout.PART_LIMIT - 1, batch_layout.PART_LIMIT + 1):
        with pytest.raises(batch_layout.MalformedMessage, match=r"piece"):
            compression.unpack(codec, packed, size)
    with pytest.raises(batch_layout.MalformedMessage, match="cannot be unpacked"):
        compression.unpack(codec, b"\x00\x01garbage", 100)
