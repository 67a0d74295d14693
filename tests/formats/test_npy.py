"""The headers of .npy files that NumPy writes, and headers that are refused."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as shapes

from gpupipe.formats import npy


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
