"""Reading the end of a file in a store, and which of its bytes are still missing."""

import io
import os

import pytest

from gpupipe.cache import file_end
from gpupipe.cache.file_end import FileEnd
from gpupipe.cache.store import FetchedRange, StoreError
from gpupipe.formats import DamagedError

SIZE = 1_000_003
BLOCK = 4096
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
    first, second = ((SIZE - n) // BLOCK * BLOCK for n in (1 << 16, 300_000))
    assert asked == [(first, SIZE), (second, first)]
    assert end.data == CONTENT[second:]
    assert end.etags == {"a"}
    assert end.read(1) == b""


@pytest.mark.parametrize(
    ("needed", "missing"),
    [
        ([(100, 5000), (0, 200)], [(0, 8192)]),
        ([(5000, 6000), (30_000, 31_000)], [(4096, 8192), (28_672, 32_768)]),
        ([(5000, 6000), (13_000, 14_000)], [(4096, 16_384)]),
        ([(-(10**30), 5), (SIZE - 10, 10**30), (10**20, 10**30), (9, 3)], [(0, 4096)]),
        ([(0, 850_000)], [(0, 933_888)]),
        ([], []),
    ],
)
def test_what_is_missing_is_in_blocks_and_near_ranges_are_joined(
    needed: Asked, missing: Asked
) -> None:
    end, _ = opened()
    end.seek(-8, io.SEEK_END)
    end.read(8)
    assert end.list_missing(needed, gap=5000) == missing


def test_a_server_that_sends_another_number_of_bytes_is_no_end_of_this_file() -> None:
    end = FileEnd(SIZE, lambda begin, end: FetchedRange(CONTENT, ""))
    assert end.read(4) == CONTENT[:4]
    assert end.list_missing([(0, 5)], gap=0) == []
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
