"""Which extensions are used, and the CRC-32 of many buffers, with the extension and without."""

from __future__ import annotations

import re
import zlib

import numpy as np
import pytest

from gpupipe.errors import EngineError
from gpupipe.runtime import compiled_extension
from gpupipe.runtime.compiled_extension import compute_crc32s, find_extension
from gpupipe.runtime.installation import rebuild_command


@pytest.mark.parametrize("name", ["_kernels", "_jpeg"])
@pytest.mark.parametrize("abi", [None, 0, 1 << 30], ids=["none", "earlier", "later"])
def test_an_extension_of_another_version_is_not_used(
    name: str, abi: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUPIPE_KERNELS", raising=False)
    extension = find_extension(name)  # type: ignore[arg-type]
    if extension is None:
        pytest.skip(f"gpupipe.{name} was not built")
    monkeypatch.delattr(extension, "ABI")
    if abi is not None:
        monkeypatch.setattr(extension, "ABI", abi, raising=False)
    with pytest.warns(UserWarning, match=f"gpupipe.{name} was built for another version"):
        assert find_extension(name) is None  # type: ignore[arg-type]
    monkeypatch.setenv("GPUPIPE_KERNELS", "on")
    with pytest.raises(EngineError, match=re.escape(rebuild_command())):
        find_extension(name)  # type: ignore[arg-type]


@pytest.fixture(
    params=[
        pytest.param(
            "extension",
            marks=pytest.mark.skipif(find_extension() is None, reason="it is not built"),
        ),
        "python",
    ],
)
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(compiled_extension, "_find_kernels", lambda: None)


@pytest.mark.usefixtures("implementation")
def test_every_size_and_alignment_has_the_crc_of_zlib() -> None:
    data = np.random.default_rng(3).integers(0, 256, 70_000, np.uint8)
    buffers = [data[start : start + size] for size in range(300) for start in range(3)]
    buffers += [data, data[1:], data[:65_536], np.zeros(1000, np.uint8)]
    expected = [zlib.crc32(buffer.tobytes()) for buffer in buffers]
    assert compute_crc32s(buffers) == expected
    assert compute_crc32s([]) == []


def test_the_extension_for_checksums_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups = []
    monkeypatch.setattr(compiled_extension, "find_extension", lambda: lookups.append(1))
    compiled_extension._find_kernels.cache_clear()
    try:
        assert [compute_crc32s([b"123456789"]) for _ in range(3)] == [[0xCBF43926]] * 3
    finally:
        compiled_extension._find_kernels.cache_clear()
    assert len(lookups) == 1


@pytest.mark.usefixtures("implementation")
def test_any_contiguous_buffer_is_taken() -> None:
    assert compute_crc32s([b"123456789", bytearray(b"123456789")]) == [0xCBF43926] * 2
    with pytest.raises((TypeError, ValueError)):
        compute_crc32s([b"1", np.zeros(8, np.uint8)[::2]])
    with pytest.raises(TypeError):
        compute_crc32s([b"1", "text"])
