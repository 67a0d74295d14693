"""The decoded chunks that a process keeps, for the samples that share a chunk."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from numpy.typing import NDArray

Key = tuple[str, int, tuple[int, int] | None]
"""The file of a chunk, the chunk's first byte in it, and the size and mtime of the file."""
Chunk = NDArray[Any]


class _Entry:
    """A chunk; `content` is None until a thread has decoded it."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.content: Chunk | None = None


class ChunkCache:
    """An LRU cache of decoded chunks. Several threads may use it at once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()
        self.num_bytes = 0

    def get(
        self,
        keys: Sequence[Key],
        decode: Callable[[Sequence[int]], Sequence[Chunk]],
        max_bytes: int,
    ) -> list[Chunk]:
        """Return chunks, and decode those that are not in the cache.

        A chunk is decoded by one thread, and others that need it wait for that. A thread decodes
        first what nobody else is decoding, so two threads that need the same chunks share the work.

        Args:
            keys: The chunks, each once.
            decode: Decodes the chunks at some positions in `keys`.
            max_bytes: The cache keeps the chunks that were used last, up to so many bytes.
        """
        entries = self._find(keys)
        missing = [n for n, entry in enumerate(entries) if entry.content is None]
        mine = [n for n in missing if entries[n].lock.acquire(blocking=False)]
        try:
            self._decode(keys, entries, mine, decode, max_bytes)
        finally:
            for n in mine:
                entries[n].lock.release()
        for n in missing:
            if entries[n].content is None:
                with entries[n].lock:  # another thread is decoding it, or has failed to
                    self._decode(keys, entries, [n], decode, max_bytes)
        return [entry.content for entry in entries if entry.content is not None]

    def _find(self, keys: Sequence[Key]) -> list[_Entry]:
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
        keys: Sequence[Key],
        entries: Sequence[_Entry],
        positions: Sequence[int],
        decode: Callable[[Sequence[int]], Sequence[Chunk]],
        max_bytes: int,
    ) -> None:
        """Decode the chunks at `positions`, whose locks the caller holds, unless they are."""
        absent = [n for n in positions if entries[n].content is None]
        if not absent:
            return
        try:
            chunks = decode(absent)
        except BaseException:
            with self._lock:
                for n in absent:
                    if self._entries.get(keys[n]) is entries[n]:
                        del self._entries[keys[n]]
            raise
        for n, chunk in zip(absent, chunks, strict=True):
            entries[n].content = chunk
        self._account(keys, entries, absent, max_bytes)

    def _account(
        self,
        keys: Sequence[Key],
        entries: Sequence[_Entry],
        positions: Sequence[int],
        max_bytes: int,
    ) -> None:
        with self._lock:
            for n in positions:
                if self._entries.get(keys[n]) is entries[n]:
                    self.num_bytes += _count_bytes(entries[n])
            while self.num_bytes > max_bytes and self._entries:
                _, oldest = self._entries.popitem(last=False)
                self.num_bytes -= _count_bytes(oldest)

    def clear(self) -> None:
        """Forget all chunks. A forked child calls it: a thread that it lacks may hold a lock."""
        self.__init__()  # type: ignore[misc]


def _count_bytes(entry: _Entry) -> int:
    return 0 if entry.content is None else entry.content.nbytes


chunks = ChunkCache()
"""The chunks of all columns of this process."""
os.register_at_fork(after_in_child=chunks.clear)
