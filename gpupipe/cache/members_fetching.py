"""Fetches shards of several objects each into ZIP files."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from gpupipe.cache.digests import compute_digest
from gpupipe.cache.listing import UNKNOWN, StoredFile
from gpupipe.cache.shard_members import ShardMember, ShardMembers
from gpupipe.cache.store import StoreError, UnfetchableError
from gpupipe.cache.stored_fetching import BLOCK, ShardFetcher, call_for_each, refuse_mixed
from gpupipe.dataset.reading import map_file
from gpupipe.formats.zip_layout import ZipLayout
from gpupipe.runtime.files import write_at
from gpupipe.runtime.installation import compute_crc32s

R = TypeVar("R")


class MembersFetcher(ShardFetcher):
    """Fetches shards whose objects are members of ZIP files.

    Args:
        members: The members of the shards.
        arguments: Those of ShardFetcher.
    """

    def __init__(self, members: ShardMembers, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._members = members

    def _fetch_shard(self, row: int, target: Path, part: object) -> int:
        """Fetch the objects of a shard, and write them to a ZIP file with the other members."""
        every = list(self._members.iter_members(row))
        sizes = call_for_each(self._pool, self._find_size, every)
        layout = ZipLayout([member.name for member in every], sizes)
        objects = [
            (m.file._replace(size=size), begin)
            for m, size, begin in zip(every, sizes, layout.begins, strict=True)
            if m.file
        ]
        with target.open("wb+", buffering=0) as f:
            os.truncate(f.fileno(), layout.size)
            for member, begin in zip(every, layout.begins, strict=True):
                write_at(f.fileno(), begin, member.content.data)
            call_for_each(
                self._pool,
                lambda one: self._fetch_object(*one, f.fileno()),
                [(file, begin) for file, begin in objects if file.size <= self._part],
            )
            for file, begin in objects:
                if file.size > self._part:  # its parts are fetched at the same time
                    self._fetch_object(file, begin, f.fileno())
            data, places = map_file(target), zip(layout.begins, sizes, strict=True)
            layout.write(f.fileno(), compute_crc32s([data[at : at + size] for at, size in places]))
            os.fsync(f.fileno())
        return layout.size

    def _find_size(self, member: ShardMember) -> int:
        file = member.file
        if file is None:
            return len(member.content)
        if file.size != UNKNOWN:
            return file.size
        return _name_failures(file, lambda: self._complete(file).size)

    def _fetch_object(self, file: StoredFile, at: int, target: int) -> None:
        """Fetch an object into the open file `target`, from its byte `at` on, and check it."""

        def fetch_once() -> None:
            listed = self._store.complete(file)
            try:
                received = self._fetch_parts(listed, at, target)
            except StoreError:
                self._store.refuse_change(listed)
                raise
            self._store.check(
                listed,
                received,
                lambda kind: compute_digest(kind, _read_blocks(target, at, listed.size)),
            )

        _name_failures(file, lambda: self._store.retry(fetch_once))

    def _fetch_parts(self, file: StoredFile, at: int, target: int) -> int:
        """Fetch all parts of an object, and write them. Return how many bytes came.

        Raises:
            OSError: It changed meanwhile.
        """
        versions = set[str]()

        def fetch_part(begin: int) -> int:
            end = min(begin + self._part, file.size)
            data, version = self._read(file, begin, end)
            versions.add(version)
            if begin and len(data) > end - begin:  # all of it, from a server without ranges
                data = data[begin:end]
            write_at(target, at + begin, data[: file.size - begin])
            return len(data)

        begins = range(0, file.size, self._part)
        received = sum(map(fetch_part, begins[:1]))
        if received < file.size:
            received += sum(call_for_each(self._pool, fetch_part, begins[1:]))
        refuse_mixed(versions)
        return received


def _name_failures(file: StoredFile, call: Callable[[], R]) -> R:
    """Return `call()`. If that fails, add the name of the object to the message."""
    try:
        return call()
    except UnfetchableError as e:
        raise type(e)(f"{file.name}: {e}") from e


def _read_blocks(target: int, begin: int, size: int) -> Iterator[bytes]:
    for at in range(begin, begin + size, BLOCK):
        yield os.pread(target, min(BLOCK, begin + size - at), at)
