import tracemalloc
import zlib
from typing import Any

import numcodecs
import numpy as np
import pytest

from gpupipe.formats import DamagedError, chunk_codecs
from gpupipe.formats.chunk_codecs import Codec, decode

DATA = np.arange(6000, dtype="<u2").view(np.uint8)


def of_numcodecs(name: str, **options: Any) -> Codec:
    return {"id": "numcodecs", "config": {"id": name, **options}}


def encode(codec: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.frombuffer(codec.encode(DATA), np.uint8)


@pytest.mark.parametrize("name", ["blosc", "zstd", "lz4", "zlib", "gzip", "bz2", "lzma"])
def test_compressors_yield_what_was_compressed_and_name_other_sizes(name: str) -> None:
    encoded = encode(numcodecs.get_codec({"id": name}))
    assert np.array_equal(decode(encoded, [of_numcodecs(name)], len(DATA)), DATA)
    for size in (len(DATA) - 1, len(DATA) + 1):
        with pytest.raises(DamagedError):
            decode(encoded, [of_numcodecs(name)], size)
    with pytest.raises(DamagedError, match=r"damaged|of \d+|cut off"):
        decode(encoded[: len(encoded) // 2], [of_numcodecs(name)], len(DATA))


def test_the_mask_leaves_codecs_out() -> None:
    codecs: list[Codec] = [{"id": "shuffle", "itemsize": 2}, {"id": "deflate"}]
    shuffled = np.frombuffer(numcodecs.Shuffle(2).encode(DATA), np.uint8)
    compressed = np.frombuffer(zlib.compress(shuffled.tobytes()), np.uint8)
    assert np.array_equal(decode(compressed, codecs, len(DATA)), DATA)
    assert np.array_equal(decode(compressed, codecs, len(DATA), 0b01), shuffled)
    assert np.array_equal(decode(shuffled, codecs, len(DATA), 0b10), DATA)
    assert np.array_equal(decode(DATA, codecs, len(DATA), 0b11), DATA)


def test_shuffled_bytes_after_the_last_number_stay() -> None:
    tail = np.concatenate([DATA, np.arange(3, dtype=np.uint8)])
    shuffled = np.concatenate(
        [np.frombuffer(numcodecs.Shuffle(4).encode(DATA), np.uint8), tail[-3:]]
    )
    assert np.array_equal(decode(shuffled, [{"id": "shuffle", "itemsize": 4}], len(tail)), tail)


@pytest.mark.parametrize(
    ("codec", "encoded"),
    [
        ({"id": "fletcher32"}, encode(numcodecs.Fletcher32())),
        (of_numcodecs("crc32"), encode(numcodecs.CRC32())),
    ],
)
def test_checksums_find_a_changed_bit(codec: Codec, encoded: Any) -> None:
    assert np.array_equal(decode(encoded, [codec], len(DATA)), DATA)
    changed = encoded.copy()
    changed[100] ^= 1
    with pytest.raises(DamagedError, match="damaged"):
        decode(changed, [codec], len(DATA))


@pytest.mark.parametrize("name", ["blosc", "zstd", "lz4", "zlib", "bz2", "lzma"])
def test_a_bomb_takes_no_memory(name: str) -> None:
    bomb = np.frombuffer(
        numcodecs.get_codec({"id": name}).encode(np.zeros(50_000_000, np.uint8)), np.uint8
    )
    tracemalloc.start()
    try:
        with pytest.raises(DamagedError):
            decode(bomb, [of_numcodecs(name)], 1000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_codecs_that_build_objects_are_not_in_the_list() -> None:
    assert not {"pickle", "json2", "vlen-bytes", "msgpack2", "categorize"} & chunk_codecs.NUMCODECS
