"""Reading the end of a file in a store."""

import io
import os

import pytest

from gpupipe.cache import file_end
from gpupipe.cache.file_end import FileEnd
from gpupipe.cache.range_reader import FetchedRange
from gpupipe.cache.store import StoreError
from gpupipe.formats import DamagedError

SIZE = 1_000_003
CONTENT = os.urandom(SIZE)
Asked = list[tuple[int, int]]


def opened() -> tuple[FileEnd, Asked]:
    """The end of a file, and the ranges that it asks the store for."""
    asked: Asked = []

    def read(begin: int, end: int) -> FetchedRange:
        asked.append((begin, end))
        return FetchedRange(memoryview(CONTENT)[begin:end], "a")

    return FileEnd(SIZE, read), asked


def test_nothing_is_fetched_twice() -> None:
    end, asked = opened()
    for begin, count in ((SIZE - 8, 8), (SIZE - 50_000, 100), (SIZE - 300_000, 300_000)):
        assert end.seek(begin - SIZE, io.SEEK_END) == begin
        assert end.read(count) == CONTENT[begin : begin + count]
        assert end.tell() == begin + count
    first, second = (SIZE - n for n in (1 << 16, 300_000))
    assert asked == [(first, SIZE), (second, first)]
    assert end.data == CONTENT[second:]
    assert end.has_ranges
    assert end.read(1) == b""


def test_a_server_that_sends_another_number_of_bytes_is_no_end_of_this_file() -> None:
    end = FileEnd(SIZE, lambda begin, end: FetchedRange(CONTENT, ""))
    end.seek(SIZE - 8)
    assert end.read(4) == CONTENT[-8:-4]
    assert not end.has_ranges
    end = FileEnd(SIZE, lambda begin, end: FetchedRange(CONTENT[:-1], ""))
    end.seek(SIZE - 8)
    with pytest.raises(StoreError, match="1,000,002 bytes came in place of 1,000,003"):
        end.read(8)


def test_an_end_that_says_it_is_huge_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_end, "_MAX_BYTES", 500_000)
    end, asked = opened()
    end.seek(100)
    with pytest.raises(DamagedError, match="its end would have 999,903 bytes"):
        end.read(8)
    assert not asked
