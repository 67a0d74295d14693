"""The objects of shards that are a ZIP file of several objects each: the shards of Zarr folders.

The objects are in the file as they are in the store. Beside them are members that no object is:
metadata for the rows of the shard, and rows of small arrays.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.cache.cache_folder import CacheFolder
from gpupipe.cache.listing import (
    UNKNOWN,
    StoredFile,
    file_version,
    find_size,
    hash_file_version,
    load_table,
    save_table,
)
from gpupipe.dataset.columns import StringArray
from gpupipe.formats.zip_layout import ZipLayout


class ShardMember(NamedTuple):
    """A member of a shard's ZIP file.

    Attributes:
        name: Path in the ZIP file.
        file: The object of the store; None if there is none.
        content: The bytes of a member that is no object.
    """

    name: str
    file: StoredFile | None
    content: NDArray[np.uint8]


@dataclass(frozen=True)
class ShardMembers:
    """The M members of all N shards of a listing.

    Attributes:
        starts: The first member of each shard, and M, int64 (N + 1,).
        names: The path of each member in its ZIP file.
        objects: The path under the data set's url of each object; "" for a member that is none.
        sizes: Bytes of each member, int64 (M,); -1 if unknown.
        tags: Hash of each object's version, uint64 (M,); 0 if unknown.
        versions: The version of each object; "" if unknown.
        begins: The first byte in `content` of a member that is no object, int64 (M,).
        content: The bytes of all members that are no objects.
    """

    starts: NDArray[np.int64]
    names: StringArray
    objects: StringArray
    sizes: NDArray[np.int64]
    tags: NDArray[np.uint64]
    versions: StringArray
    begins: NDArray[np.int64]
    content: NDArray[np.uint8]

    def iter_members(self, row: int) -> Iterator[ShardMember]:
        """Yield what one shard of the listing consists of: objects of the store, or own bytes."""
        for n in range(int(self.starts[row]), int(self.starts[row + 1])):
            name, size, begin = self.names[n], int(self.sizes[n]), int(self.begins[n])
            if path := self.objects[n]:
                file = StoredFile(path, size, int(self.tags[n]), self.versions[n])
                yield ShardMember(name, file, self.content[:0])
            else:
                yield ShardMember(name, None, self.content[begin : begin + size])


@dataclass
class MembersBuilder:
    """Collects the members of one shard after another.

    Attributes:
        sizes: The bytes of each shard so far; where the store does not tell them, what they may be.
    """

    sizes: list[int] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _objects: list[str] = field(default_factory=list)
    _infos: list[dict[str, Any]] = field(default_factory=list)
    _max_sizes: list[int] = field(default_factory=list)
    _contents: list[bytes] = field(default_factory=list)
    _starts: list[int] = field(default_factory=lambda: [0])

    def add_object(self, name: str, path: str, info: dict[str, Any], max_bytes: int = 0) -> None:
        """Add an object of the store to the shard.

        Args:
            name: Its path in the ZIP file.
            path: Its path under the data set's url.
            info: fsspec's description of it.
            max_bytes: The bytes that it may have, if the description does not tell them.
        """
        size = find_size(info)
        self._add(name, path, info, b"", max_bytes if size == UNKNOWN else size)

    def add_content(self, name: str, content: bytes) -> None:
        """Add a member that is no object to the shard."""
        self._add(name, "", {"size": len(content)}, content, len(content))

    def _add(
        self, name: str, path: str, info: dict[str, Any], content: bytes, max_bytes: int
    ) -> None:
        self._names.append(name)
        self._objects.append(path)
        self._infos.append(info)
        self._contents.append(content)
        self._max_sizes.append(max_bytes)

    def end_shard(self) -> None:
        """End the shard: what is added from here on is of the next one."""
        start = self._starts[-1]
        self.sizes.append(ZipLayout(self._names[start:], self._max_sizes[start:]).size)
        self._starts.append(len(self._names))

    def build(self) -> ShardMembers:
        """Return the members that were added."""
        lengths = np.array([len(content) for content in self._contents], np.int64)
        return ShardMembers(
            np.array(self._starts, np.int64),
            StringArray.from_strings(self._names),
            StringArray.from_strings(self._objects),
            np.array([find_size(info) for info in self._infos], np.int64),
            np.array([hash_file_version(info) for info in self._infos], np.uint64),
            StringArray.from_strings(file_version(info) for info in self._infos),
            np.cumsum(lengths) - lengths,
            np.frombuffer(b"".join(self._contents), np.uint8),
        )


def save(members: ShardMembers, folder: CacheFolder) -> None:
    """Save the members in the cache folder. The caller must hold the cache's lock.

    Raises:
        DataError: They do not fit under max_bytes.
    """
    described = f"the list of {len(members.names):,} objects"
    save_table(members, folder.members_path, described, folder)


def load(folder: CacheFolder) -> ShardMembers | None:
    """Return the saved members, with their arrays memory-mapped; None if shards are one object.

    Raises:
        DataError: The file is damaged.
    """
    if not folder.members_path.exists():
        return None
    return load_table(folder.members_path, ShardMembers, "the list of the objects")
