"""Decode the chunks of HDF5 and Zarr arrays: undo compression, byte shuffling and checksums.

A codec is a dict of plain JSON, {"id": NAME} and its parameters. NAME is one of:

    deflate     zlib, as HDF5's gzip filter writes it
    gzip        gzip, as Zarr writes it
    shuffle     HDF5's byte shuffle; "itemsize" is the size of a number in bytes
    fletcher32  HDF5's checksum, 4 bytes at the end
    crc32c      Zarr's checksum, 4 bytes at the end
    lzf         h5py's LZF
    numcodecs   a codec of the package numcodecs; "config" is its configuration

All of them work without the GIL for most of their time. Those of numcodecs that would run code or
build objects (pickle, json) are not in NUMCODECS, and are refused.
"""

import contextlib
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from json import dumps, loads
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

_inflater: Any = zlib
with contextlib.suppress(ImportError):  # it inflates faster than zlib
    from isal import isal_zlib as _inflater

Codec = Mapping[str, Any]
Data = NDArray[np.uint8]

NUMCODECS = frozenset(
    "adler32 astype bitround blosc bz2 crc32 crc32c delta fixedscaleoffset fletcher32 gzip "
    "jenkins_lookup3 lz4 lzma packbits quantize shuffle zlib zstd".split()
)
"""The codecs of numcodecs that turn bytes into numbers, and do nothing else."""
_KEEP_SIZE = frozenset({"shuffle", "bitround"})
_CHECKSUM_BYTES = 4
_CHECKSUMS = frozenset({"fletcher32", "crc32c"})
_GZIP = 16 + zlib.MAX_WBITS
PACKAGES = {
    **dict.fromkeys(("numcodecs", "shuffle", "fletcher32"), "numcodecs"),
    "crc32c": "google_crc32c",
    "lzf": "imagecodecs",
}
"""The package that a codec needs; the others need none."""


def decode(data: Data, codecs: Sequence[Codec], size: int, mask: int = 0) -> Data:
    """Undo the codecs of a chunk.

    Args:
        data: The bytes of the chunk in the file.
        codecs: The codecs in the order in which they encoded the chunk.
        size: The size of the decoded chunk in bytes.
        mask: Bit n is set if codec n was left out when this chunk was written.

    Returns:
        The decoded chunk, uint8 (size,).

    Raises:
        DamagedError: The chunk is damaged, or has another size.
        ImportError: A package that a codec needs is missing.
    """
    used = [codec for n, codec in enumerate(codecs) if not mask >> n & 1]
    # The size before each codec encoded it; None after a codec whose output has any size.
    sizes: list[int | None] = [size]
    for codec in used:
        sizes.append(_encoded_size(codec, sizes[-1]))
    for codec, expected in zip(reversed(used), reversed(sizes[:-1]), strict=True):
        name = str(codec["id"])
        try:
            data = _DECODERS[name](data, codec, expected, 2 * size + _SLACK)
        except (DamagedError, ImportError):
            raise
        except Exception as e:  # each library has exceptions of its own
            reason = str(e).splitlines()[0][:200] if str(e) else type(e).__name__
            raise DamagedError(f"its {_describe(codec)} data are damaged: {reason}") from e
    if len(data) != size:
        raise DamagedError(f"a chunk of {len(data):,} bytes, and not of {size:,}")
    return data


_SLACK = 65_536
"""Bytes that data between two compressors may have beyond twice the size of a chunk."""


def _encoded_size(codec: Codec, size: int | None) -> int | None:
    """Return the size of `size` bytes after a codec encoded them; None if that depends on them."""
    if size is None:
        return None
    if codec["id"] in _CHECKSUMS:
        return size + _CHECKSUM_BYTES
    name = codec["config"]["id"] if codec["id"] == "numcodecs" else codec["id"]
    return size if name in _KEEP_SIZE else None


def _describe(codec: Codec) -> str:
    return str(codec["config"]["id"] if codec["id"] == "numcodecs" else codec["id"])


def _inflate(data: Data, expected: int | None, limit: int, window: int) -> Data:
    size = limit if expected is None else expected
    stream = _inflater.decompressobj(window)
    content = stream.decompress(data.data, size + 1)
    if len(content) > size:
        raise DamagedError(f"its compressed bytes are damaged: more than {size:,} bytes in them")
    if not stream.eof:
        raise DamagedError("its compressed bytes are damaged: they are cut off")
    return np.frombuffer(content, np.uint8)


def _decode_deflate(data: Data, codec: Codec, expected: int | None, limit: int) -> Data:
    return _inflate(data, expected, limit, zlib.MAX_WBITS)


def _decode_gzip(data: Data, codec: Codec, expected: int | None, limit: int) -> Data:
    return _inflate(data, expected, limit, _GZIP)


def _decode_shuffle(data: Data, codec: Codec, expected: int | None, limit: int) -> Data:
    itemsize = int(codec["itemsize"])
    end = len(data) - len(data) % itemsize if itemsize > 1 else 0
    if not end:
        return data
    config = dumps({"id": "shuffle", "elementsize": itemsize})
    numbers = np.frombuffer(_find_codec(config).decode(data[:end]), np.uint8)
    # HDF5 leaves the bytes after the last whole number as they are.
    return numbers if end == len(data) else np.concatenate([numbers, data[end:]])


def _decode_fletcher32(data: Data, codec: Codec, expected: int | None, limit: int) -> Data:
    if len(data) <= _CHECKSUM_BYTES:
        raise DamagedError(f"{len(data)} bytes, too few for a checksum")
    return np.frombuffer(_find_codec('{"id": "fletcher32"}').decode(data), np.uint8)


def _decode_crc32c(data: Data, codec: Codec, expected: int | None, limit: int) -> Data:
    check_crc32c(data)
    return data[:-_CHECKSUM_BYTES]


def check_crc32c(data: Data) -> None:
    """Raise DamagedError unless the last 4 bytes are the CRC-32C of the others."""
    from google_crc32c import value

    if len(data) < _CHECKSUM_BYTES or value(data[:-_CHECKSUM_BYTES].tobytes()) != int.from_bytes(
        data[-_CHECKSUM_BYTES:].tobytes(), "little"
    ):
        raise DamagedError("damaged: its CRC-32C differs")


def _decode_lzf(data: Data, codec: Codec, expected: int | None, limit: int) -> Data:
    import imagecodecs

    size = limit if expected is None else expected
    return np.frombuffer(imagecodecs.lzf_decode(data.tobytes(), out=size), np.uint8)


def _decode_numcodecs(data: Data, codec: Codec, expected: int | None, limit: int) -> Data:
    config = codec["config"]
    name = config["id"]
    if name in ("zlib", "gzip"):
        return _inflate(data, expected, limit, _GZIP if name == "gzip" else zlib.MAX_WBITS)
    if name == "bz2":
        import bz2

        return np.frombuffer(bz2.BZ2Decompressor().decompress(data.data, limit), np.uint8)
    if name == "lzma":
        import lzma

        return np.frombuffer(lzma.LZMADecompressor().decompress(data.data, limit), np.uint8)
    if name == "blosc" and int.from_bytes(data[12:16].tobytes(), "little") != len(data):
        # The library would read beyond the end.
        raise DamagedError(f"its blosc data are damaged: {len(data):,} bytes, and not as declared")
    declared = _SIZES[name](data[:_LONGEST_HEADER].tobytes()) if name in _SIZES else None
    if declared is not None and declared > limit:
        raise DamagedError(f"its {name} data declare {declared:,} bytes, and should have {limit:,}")
    decoder, content = _find_codec(dumps(config)), np.ascontiguousarray(data)
    if declared is not None and declared == expected:
        out = np.empty(expected, np.uint8)
        decoder.decode(content, out)
        return out
    decoded = decoder.decode(content)
    return np.ascontiguousarray(decoded).reshape(-1).view(np.uint8)


_LONGEST_HEADER = 18
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def _read_zstd_size(header: bytes) -> int | None:
    """Return the size of the content that a Zstandard frame declares (RFC 8878, 3.1.1.1)."""
    if header[:4] != _ZSTD_MAGIC:
        raise DamagedError("no Zstandard frame")
    descriptor = header[4]
    is_single = descriptor >> 5 & 1
    size = (is_single, 2, 4, 8)[descriptor >> 6]
    begin = 5 + (not is_single) + (0, 1, 2, 4)[descriptor & 3]
    count = int.from_bytes(header[begin : begin + size], "little")
    return (count + 256 if size == 2 else count) if size else None


_SIZES: Mapping[str, Callable[[bytes], int | None]] = {
    "blosc": lambda header: int.from_bytes(header[4:8], "little"),
    "lz4": lambda header: int.from_bytes(header[:4], "little"),
    "zstd": _read_zstd_size,
}
"""Read the size that compressed data declare, before a library allocates as much."""


@lru_cache(maxsize=64)
def _find_codec(config: str) -> Any:
    """Return the codec of numcodecs for a configuration in JSON."""
    import numcodecs

    return numcodecs.get_codec(loads(config))


_DECODERS: Mapping[str, Callable[[Data, Codec, int | None, int], Data]] = {
    "deflate": _decode_deflate,
    "gzip": _decode_gzip,
    "shuffle": _decode_shuffle,
    "fletcher32": _decode_fletcher32,
    "crc32c": _decode_crc32c,
    "lzf": _decode_lzf,
    "numcodecs": _decode_numcodecs,
}
