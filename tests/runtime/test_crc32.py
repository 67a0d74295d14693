"""The CRC-32 of many buffers, with the extension and without: zlib's."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from gpupipe.runtime import crc32
from gpupipe.runtime.compiled_extension import find_extension


@pytest.fixture(
    params=[
        pytest.param(
            "extension",
            marks=pytest.mark.skipif(find_extension() is None, reason="it is not built"),
        ),
        "python",
    ],
    autouse=True,
)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(crc32, "_extension", None)


def test_every_size_and_alignment_has_the_crc_of_zlib() -> None:
    data = np.random.default_rng(3).integers(0, 256, 70_000, np.uint8)
    buffers = [data[start : start + size] for size in range(300) for start in range(3)]
    buffers += [data, data[1:], data[:65_536], np.zeros(1000, np.uint8)]
    expected = [zlib.crc32(buffer.tobytes()) for buffer in buffers]
    assert crc32.compute_crc32s(buffers) == expected
    assert crc32.compute_crc32s([]) == []


def test_any_contiguous_buffer_is_taken() -> None:
    assert crc32.compute_crc32s([b"123456789", bytearray(b"123456789")]) == [0xCBF43926] * 2
    with pytest.raises((TypeError, ValueError)):
        crc32.compute_crc32s([b"1", np.zeros(8, np.uint8)[::2]])
    with pytest.raises(TypeError):
        crc32.compute_crc32s([b"1", "text"])
