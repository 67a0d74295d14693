"""What a process keeps of the chunks that it decoded, for the samples that share a chunk."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from gpupipe.runtime.systems import call_after_fork

Chunk = TypeVar("Chunk")


class _Entry(Generic[Chunk]):
    """A chunk; `content` is None until a thread has decoded it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.content: Chunk | None = None


class ChunkCache(Generic[Chunk]):
    """An LRU cache of decoded chunks. Several threads may use it at once.

    Args:
        weigh: Returns how much room a chunk takes.

    Attributes:
        weight: How much room the chunks in the cache take.
    """

    def __init__(self, weigh: Callable[[Chunk], int]) -> None:
        self._weigh, self._lock = weigh, Lock()
        self._entries: OrderedDict[Hashable, _Entry[Chunk]] = OrderedDict()
        self.weight = 0

    def get(
        self,
        keys: Sequence[Hashable],
        decode: Callable[[Sequence[int]], Sequence[Chunk]],
        room: int,
    ) -> list[Chunk]:
        """Return chunks, and decode those that are not in the cache.

        A chunk is decoded by one thread, and others that need it wait for that. A thread decodes
        first what no other is decoding, so two threads that need the same chunks share the work.

        Args:
            keys: The chunks, each once.
            decode: Decodes the chunks at some positions in `keys`.
            room: The cache keeps the chunks that were used last, as many as fit.
        """
        entries = self._find(keys)
        missing = [n for n, entry in enumerate(entries) if entry.content is None]
        mine = [n for n in missing if entries[n].lock.acquire(blocking=False)]
        try:
            self._decode(keys, entries, mine, decode, room)
        finally:
            for n in mine:
                entries[n].lock.release()
        for n in missing:
            if entries[n].content is None:
                with entries[n].lock:  # another thread is decoding it, or has failed to
                    self._decode(keys, entries, [n], decode, room)
        return [entry.content for entry in entries if entry.content is not None]

    def _find(self, keys: Sequence[Hashable]) -> list[_Entry[Chunk]]:
        entries = []
        with self._lock:
            for key in keys:
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = _Entry()
                else:
                    self._entries.move_to_end(key)
                entries.append(entry)
        return entries

    def _decode(
        self,
        keys: Sequence[Hashable],
        entries: Sequence[_Entry[Chunk]],
        positions: Sequence[int],
        decode: Callable[[Sequence[int]], Sequence[Chunk]],
        room: int,
    ) -> None:
        """Decode the chunks at `positions`, whose locks the caller holds, unless they are."""
        absent = [n for n in positions if entries[n].content is None]
        if not absent:
            return
        try:
            chunks = list(decode(absent))
        except BaseException:
            with self._lock:
                for n in absent:
                    if self._entries.get(keys[n]) is entries[n]:
                        del self._entries[keys[n]]
            raise
        with self._lock:  # what has content in the cache is also counted
            for n, chunk in zip(absent, chunks, strict=True):
                entries[n].content = chunk
                if self._entries.get(keys[n]) is entries[n]:
                    self.weight += self._weigh(chunk)
            while self.weight > room and self._entries:
                _, oldest = self._entries.popitem(last=False)
                self.weight -= 0 if oldest.content is None else self._weigh(oldest.content)

    def clear(self) -> None:
        """Forget all chunks. A forked child calls it: a thread that it lacks may hold a lock."""
        self.__init__(self._weigh)  # type: ignore[misc]


def _count_bytes(array: NDArray[Any]) -> int:
    return array.nbytes


chunks = ChunkCache(_count_bytes)
"""The chunks of all columns of this process."""
call_after_fork(chunks.clear)
