from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Callable

import numpy as np
import pytest

from gpupipe.formats import Damaged
from gpupipe.formats.npz import find_array

ARRAYS = {"x": np.arange(6, dtype=np.int16).reshape(2, 3), "y": np.array([1, 0])}


def written(save: Callable[..., None] = np.savez, **arrays: np.ndarray) -> io.BytesIO:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream


@pytest.mark.parametrize("name", ARRAYS)
def test_the_bytes_of_an_array_are_those_of_its_npy_file(name: str) -> None:
    stream = written(**ARRAYS)
    start, size = find_array(stream, name)
    part = stream.getvalue()[start : start + size]
    assert np.array_equal(np.load(io.BytesIO(part)), ARRAYS[name])


def test_a_single_array_needs_no_name() -> None:
    start, size = find_array(written(only=ARRAYS["x"]), "array")
    assert size > 128
    assert start > 0


def test_a_name_that_is_not_there_is_suggested() -> None:
    with pytest.raises(ValueError, match=r"known: x, y: name it under data\.arrays"):
        find_array(written(**ARRAYS), "z")


def test_compressed_arrays_are_refused() -> None:
    with pytest.raises(ValueError, match=r"write it with numpy\.savez"):
        find_array(written(np.savez_compressed, **ARRAYS), "x")


def test_what_is_no_zip_is_damaged() -> None:
    for data in (b"", b"\x93NUMPY", written(**ARRAYS).getvalue()[:-9]):
        with pytest.raises(Damaged, match=r"no \.npz file"):
            find_array(io.BytesIO(data), "x")


def test_any_change_is_a_result_or_a_value_error() -> None:
    whole, draw = written(**ARRAYS).getvalue(), random.Random(0)
    directory = whole.index(b"PK\x01\x02")
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(directory, len(data)) if draw.random() < 0.8 else 0
            data[place or draw.randrange(60)] = draw.randrange(256)
        try:
            start, size = find_array(io.BytesIO(bytes(data)), "x")
        except (ValueError, OSError):
            continue
        assert 0 <= start <= start + size <= len(data)


def test_an_array_whose_bytes_changed_is_damaged() -> None:
    whole = written(**ARRAYS).getvalue()
    start, size = find_array(io.BytesIO(whole), "x")
    for place in (start, start + size - 1):
        data = bytearray(whole)
        data[place] ^= 1
        with pytest.raises(Damaged, match=r"'x\.npy' do not have its CRC-32"):
            find_array(io.BytesIO(data), "x")
        find_array(io.BytesIO(data), "y")


def test_an_entry_that_ends_past_the_file_is_damaged() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", b"0123456789")
    data = bytearray(stream.getvalue())
    length = data.index(b"PK\x01\x02") + 24
    data[length : length + 4] = (5000).to_bytes(4, "little")
    with pytest.raises(Damaged, match="ends past the file's end"):
        find_array(io.BytesIO(bytes(data)), "x")
