"""Structures of Thrift: what is read is written again, and what is wrong with one is said."""

import io

import pytest

from gpupipe.formats import DamagedError
from gpupipe.formats.parquet_footer import read_row_groups
from gpupipe.formats.thrift_compact import STRUCT, ThriftReader, pack, pack_struct, pack_structs


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -65, 2**40, 2**63 - 1, -(2**63)])
def test_numbers_are_read_as_they_were_written(number: int) -> None:
    assert ThriftReader(pack(number)).read_integer() == number


def test_structures_are_read_as_they_were_written() -> None:
    inner = [pack_struct([(1, 6, pack(n))]) for n in range(20)]
    fields = [(1, 6, pack(7)), (3, 1, b""), (200, 9, pack_structs(inner)), (201, 8, b"\x02ab")]
    data = pack_struct(fields)
    reader = ThriftReader(data)
    assert [(n, kind, reader.skip(kind)) for n, kind in reader.iter_fields()] == fields
    reader = ThriftReader(pack_structs(inner[:3]))
    assert [reader.skip(STRUCT) for _ in reader.iter_items(STRUCT)] == inner[:3]


@pytest.mark.parametrize(
    ("footer", "said"),
    [
        (b"\x19\xfc\xff\xff\xff\xff\x0f", "cut off"),
        (b"\x1b\xff\xff\xff\xff\x0f\x88", "cut off"),
        (b"\x16" + b"\xff" * 20, "more than 64 bits"),
        (b"\x1c" * 100, "structures in structures without end"),
        (b"\x1e\x00", "a field of kind 14, which there is not"),
        (b"\x15\x02", "cut off"),
    ],
)
def test_what_is_wrong_with_a_footer_is_said(footer: bytes, said: str) -> None:
    with pytest.raises(DamagedError, match=said):
        read_row_groups(io.BytesIO(footer + len(footer).to_bytes(4, "little") + b"PAR1"))
