from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import numpy as np
import pytest

from gpupipe.dataset.chunk_cache import ChunkCache

Key = tuple[str, int, tuple[int, int]]

KEYS: list[Key] = [("file", n, (10, 20)) for n in range(6)]


def make(n: int) -> np.ndarray[Any, Any]:
    return np.full(10, n, np.uint8)


def decoder(keys: Sequence[Key], decoded: list[int]) -> Callable[[Sequence[int]], list[Any]]:
    """Decode a chunk as its number, and note that in `decoded`."""

    def decode(positions: Sequence[int]) -> list[Any]:
        decoded.extend(keys[n][1] for n in positions)
        return [make(keys[n][1]) for n in positions]

    return decode


def get(
    cache: ChunkCache[Any], numbers: Sequence[int], decoded: list[int], max_bytes: int
) -> list[int]:
    keys = [KEYS[n] for n in numbers]
    return [int(chunk[0]) for chunk in cache.get(keys, decoder(keys, decoded), max_bytes)]


def test_the_chunks_used_last_are_kept() -> None:
    cache, decoded = ChunkCache(len), list[int]()
    assert get(cache, [0, 1, 2], decoded, 30) == [0, 1, 2]
    assert get(cache, [0], decoded, 30) == [0]
    assert get(cache, [3], decoded, 30) == [3]  # 1 was used least recently
    assert decoded == [0, 1, 2, 3]
    assert cache.weight == 30
    assert get(cache, [0, 2, 3, 1], decoded, 30) == [0, 2, 3, 1]
    assert decoded == [0, 1, 2, 3, 1]
    cache.clear()
    assert cache.weight == 0


def test_more_chunks_than_fit_are_returned_all_the_same() -> None:
    cache, decoded = ChunkCache(len), list[int]()
    assert get(cache, range(6), decoded, 25) == list(range(6))
    assert cache.weight <= 25


def test_another_state_of_the_file_is_another_chunk() -> None:
    cache, decoded = ChunkCache(len), list[int]()
    get(cache, [0], decoded, 100)
    changed: list[Key] = [("file", 0, (10, 21))]
    cache.get(changed, decoder(changed, decoded), 100)
    assert decoded == [0, 0]


def test_a_failure_is_raised_and_not_kept() -> None:
    cache, decoded = ChunkCache(len), list[int]()

    def fail(positions: Sequence[int]) -> list[Any]:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        cache.get(KEYS[:2], fail, 100)
    assert get(cache, [0, 1], decoded, 100) == [0, 1]


def test_a_chunk_that_is_dropped_while_its_batch_is_decoded_is_not_counted() -> None:
    cache, decoded = ChunkCache(len), list[int]()

    class Chunks(list[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield make(0)
            get(cache, [1, 2], decoded, 10)  # as another thread might
            yield make(5)

    cache.get([KEYS[0], KEYS[5]], lambda _: Chunks(), 10)
    get(cache, [3], decoded, 0)
    decoded.clear()
    get(cache, [3], decoded, 0)
    assert decoded == [3], "nothing stays where there is no room"
    assert cache.weight == 0


def test_two_threads_decode_each_chunk_once_and_share_the_work() -> None:
    cache, first, entered = ChunkCache(len), list[int](), Event()
    release = Event()

    def slow(positions: Sequence[int]) -> list[Any]:
        first.extend(positions)
        entered.set()
        assert release.wait(60)
        return [make(KEYS[n][1]) for n in positions]

    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(cache.get, KEYS[:3], slow, 100)
        assert entered.wait(60)
        second: list[int] = []

        def note(positions: Sequence[int]) -> list[Any]:
            second.extend(positions)
            release.set()  # the other thread's chunks are waited for only after one's own
            return [make(KEYS[n][1]) for n in positions]

        other = pool.submit(cache.get, KEYS[:5], note, 100)
        assert [int(chunk[0]) for chunk in other.result(60)] == [0, 1, 2, 3, 4]
        assert [int(chunk[0]) for chunk in held.result(60)] == [0, 1, 2]
    assert (first, second) == ([0, 1, 2], [3, 4])
