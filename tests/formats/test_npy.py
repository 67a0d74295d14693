"""Headers of .npy files that NumPy writes or that are refused, and the arrays of .npz files."""

import io
import random
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as shapes

from gpupipe.formats import DamagedError, npy


def saved(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version, allow_pickle=True)
    return out.getvalue()


DTYPES = st.sampled_from(["f2", "f4", "f8", "i1", "i8", "u2", "?"])


@given(
    shapes.arrays(DTYPES, shapes.array_shapes(min_dims=0, max_dims=4, min_side=0)),
    st.sampled_from([(1, 0), (2, 0)]),
)
def test_what_numpy_writes(array: np.ndarray, version: tuple[int, int]) -> None:
    content = saved(array, version)
    header = npy.parse_header(content)
    assert (header.dtype, header.shape) == (array.dtype.name, array.shape)
    assert content[header.offset :] == array.tobytes()
    assert header.length == array.nbytes


def text(header: str, length: int | None = None) -> bytes:
    return (
        b"\x93NUMPY\x01\x00"
        + (len(header) if length is None else length).to_bytes(2, "little")
        + header.encode()
    )


REFUSED = {
    "no npy": (b"hello, hello", "no .npy file"),
    "cut off": (saved(np.zeros(3))[:60], "a header that is cut off, or too long"),
    "a length that leads out": (text("{}", 60000), "a header that is cut off, or too long"),
    "big-endian": (saved(np.zeros(3, ">f4")), r"big-endian numbers \(>f4\): save it as a.astype"),
    "Fortran order": (
        saved(np.zeros((2, 3), order="F")),
        "an array in Fortran order: save it as np.ascontiguousarray",
    ),
    "objects": (saved(np.array([{}])), r"an array of object: .* \(objects are never unpickled\)"),
    "times": (saved(np.zeros(2, "M8[s]")), "an array of datetime64"),
    "text": (saved(np.array(["a"])), "an array of <U1"),
    "named fields": (saved(np.zeros(2, [("a", "f4")])), "an array of"),
    "version 3": (
        saved(np.zeros(2, [("ä", "f4")]), (3, 0)),
        "version 3.0 of .npy, which is for named fields",
    ),
    "no literal": (
        text("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,)}\n"),
        "a header that cannot be read",
    ),
    "no dictionary": (text("[1, 2]\n"), "a header that cannot be read"),
    "a negative shape": (
        text("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }\n"),
        r"the shape \(-1,\), which no array has",
    ),
    "parentheses without an end": (text("(" * 5000 + "\n"), "a header that cannot be read"),
    "an odd escape": (
        text(r"{'descr': '\d', 'fortran_order': False, 'shape': ()}" + "\n"),
        "a header that cannot be read",
    ),
}


@pytest.mark.parametrize(("content", "said"), REFUSED.values(), ids=REFUSED)
def test_headers_that_are_refused(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        npy.parse_header(content)


def test_one_dimension_has_both_orders() -> None:
    assert npy.parse_header(saved(np.asfortranarray(np.zeros((1, 5), "f4")))).shape == (1, 5)


ARRAYS = {"x": np.arange(6, dtype=np.int16).reshape(2, 3), "y": np.array([1, 0])}


def written(save: Callable[..., None] = np.savez, **arrays: np.ndarray) -> bytes:
    stream = io.BytesIO()
    save(stream, **arrays)
    return stream.getvalue()


def find_array(content: bytes | bytearray, name: str) -> tuple[int, int]:
    return npy.find_array(np.frombuffer(bytes(content), np.uint8), name)


@pytest.mark.parametrize("name", ARRAYS)
def test_the_bytes_of_an_array_are_those_of_its_npy_file(name: str) -> None:
    whole = written(**ARRAYS)
    start, size = find_array(whole, name)
    part = whole[start : start + size]
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
    for data in (b"", b"\x93NUMPY", written(**ARRAYS)[:-9]):
        with pytest.raises(DamagedError, match=r"no \.npz file"):
            find_array(data, "x")


def test_any_change_is_a_result_or_a_value_error() -> None:
    whole, draw = written(**ARRAYS), random.Random(0)
    directory = whole.index(b"PK\x01\x02")
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(directory, len(data)) if draw.random() < 0.8 else 0
            data[place or draw.randrange(60)] = draw.randrange(256)
        try:
            start, size = find_array(data, "x")
        except (ValueError, OSError):
            continue
        assert 0 <= start <= start + size <= len(data)


def test_an_array_whose_bytes_changed_is_damaged() -> None:
    whole = written(**ARRAYS)
    start, size = find_array(whole, "x")
    for place in (start, start + size - 1):
        data = bytearray(whole)
        data[place] ^= 1
        with pytest.raises(DamagedError, match=r"x\.npy: damaged: .* CRC-32"):
            find_array(data, "x")
        find_array(data, "y")


def test_an_entry_that_ends_past_the_file_is_damaged() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("x.npy", b"0123456789")
    data = bytearray(stream.getvalue())
    sizes = data.index(b"PK\x01\x02") + 20
    data[sizes : sizes + 8] = 2 * (5000).to_bytes(4, "little")
    with pytest.raises(DamagedError, match="ends past the file's end"):
        find_array(data, "x")
