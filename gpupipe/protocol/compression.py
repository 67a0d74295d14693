"""Compression of pieces of a batch: lz4 or zstd, where their packages are installed."""

from __future__ import annotations

from functools import cache
from typing import Any

from gpupipe.errors import ServerError
from gpupipe.protocol.messages import MalformedMessage

NAMES = ("lz4", "zstd")
_PACKAGES = {"lz4": "lz4", "zstd": "zstandard"}
_LEVEL = 1


@cache
def installed() -> tuple[str, ...]:
    """The codecs that this process can unpack."""
    return tuple(name for name in NAMES if _module(name) is not None)


def check(name: str) -> None:
    """Raises ServerError where a codec is not installed."""
    if name not in installed():
        raise ServerError(
            f"compression with {name} needs the package {_PACKAGES[name]}: pip install "
            f"{_PACKAGES[name]}"
        )


def pack(name: str, data: Any) -> bytes | None:
    """The piece in less space; None where it would not get smaller."""
    module = _module(name)
    packed: bytes = (
        module.compress(data, store_size=False)
        if name == "lz4"
        else module.ZstdCompressor(level=_LEVEL).compress(data)
    )
    return packed if len(packed) < len(data) else None


def unpack(name: str, data: Any, size: int) -> Any:
    """The piece, exactly `size` bytes. Raises MalformedMessage."""
    if name == "":
        found = data
    elif name not in installed():
        raise MalformedMessage(f"a piece is packed with {name!r}")
    else:
        found = _unpacked(name, data, size)
    if len(found) != size:
        raise MalformedMessage(f"a piece of {len(found)} bytes, where {size} were announced")
    return found


def _unpacked(name: str, data: Any, size: int) -> bytes:
    module = _module(name)
    try:
        if name == "lz4":
            # a bytes object
            return module.decompress(data, uncompressed_size=size)  # type: ignore[no-any-return]
        decompressor = module.ZstdDecompressor(max_window_size=1 << 23)
        with decompressor.stream_reader(data) as reader:
            # one byte more, to see that there is none
            return reader.read(size + 1)  # type: ignore[no-any-return]
    except Exception as e:  # each package has errors of its own, which are of no common class
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
