"""Compression of pieces of a batch with lz4 or zstd, if their packages are installed."""

from __future__ import annotations

from functools import cache
from typing import Any

from gpupipe.errors import ServerError
from gpupipe.protocol.batch_layout import MalformedMessage

NAMES = ("lz4", "zstd")
_PACKAGES = {"lz4": "lz4", "zstd": "zstandard"}
_ZSTD_LEVEL = 1


@cache
def installed() -> tuple[str, ...]:
    """Return the codecs that this process can unpack, from NAMES."""
    return tuple(name for name in NAMES if _module(name) is not None)


def check(name: str) -> None:
    """Raise ServerError if the package of a codec is not installed."""
    if name not in installed():
        raise ServerError(
            f"compression with {name} needs the package {_PACKAGES[name]}: pip install "
            f"{_PACKAGES[name]}"
        )


def pack(name: str, data: Any) -> bytes | None:
    """Compress a piece with the codec `name`. None if that does not make it smaller."""
    module = _module(name)
    packed: bytes = (
        module.compress(data, store_size=False)
        if name == "lz4"
        else module.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)
    )
    return packed if len(packed) < len(data) else None


def unpack(name: str, data: Any, size: int) -> Any:
    """Decompress a piece.

    Args:
        name: The codec, or "" for a piece that is not compressed.
        data: Bytes-like.
        size: Exact number of bytes of the result.

    Raises:
        MalformedMessage: The codec is not installed, or the result has another size.
    """
    if name == "":
        unpacked = data
    elif name not in installed():
        raise MalformedMessage(f"a piece is packed with {name!r}")
    else:
        unpacked = _decompress(name, data, size)
    if len(unpacked) != size:
        raise MalformedMessage(f"a piece of {len(unpacked)} bytes, where {size} were announced")
    return unpacked


def _decompress(name: str, data: Any, size: int) -> bytes:
    module = _module(name)
    try:
        if name == "lz4":
            # bytes, though lz4 has no types
            return module.decompress(data, uncompressed_size=size)  # type: ignore[no-any-return]
        decompressor = module.ZstdDecompressor(max_window_size=1 << 23)
        with decompressor.stream_reader(data) as reader:
            # read one byte more: a longer result is then noticed
            return reader.read(size + 1)  # type: ignore[no-any-return]
    except Exception as e:  # each package raises its own errors, without a common base class
        raise MalformedMessage(f"a piece cannot be unpacked: {e}") from None


@cache
def _module(name: str) -> Any:
    try:
        if name == "lz4":
            import lz4.block as module
        else:
            import zstandard as module
    except ModuleNotFoundError:
        return None
    return module
