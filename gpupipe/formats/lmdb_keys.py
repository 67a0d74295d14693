"""Parse LMDB databases: find the byte range of each value in data.mdb.

A KeyTemplate, such as "image-{id}" or "{class}/{name}.jpg", selects keys, and builds the related
keys of other fields.

LMDB stores a value contiguously, so any process can map it into memory. The LMDB library is not
used: it ends a process that reads a damaged file, and a forked process cannot use a database that
its parent opened. This parser reads the meta pages, then the pages of the B+ tree in the order of
the keys. The layout is that of LMDB 0.9 on 64-bit little-endian machines (lmdb.h, mdb.c).
"""

import re
import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_PAGE_HEADER = struct.Struct("<QHHHH")
"""Page number, padding, flags, lower and upper end of the free space.

In overflow pages, the last two fields are the number of pages (low and high 16 bits).
"""
_META = struct.Struct("<16xLL120xQ")
"""Magic, version, number of the transaction."""
_TREE = struct.Struct("<LHHQQQQQ")
"""Padding, flags, depth; number of branch, leaf and overflow pages; number of entries; root page.

The first tree of a meta page has the page size in place of the padding.
"""
_TREES_AT = 40
_NODE = struct.Struct("<HHHH")
"""Low and high 16 bits of the value's size, flags, size of the key.

In a branch page, the first three fields are the child's page number.
"""
_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_IN_OVERFLOW, _IS_TREE, _HAS_DUPLICATES = 1, 2, 4
_NO_ROOT = (1 << 64) - 1


class Value(NamedTuple):
    """A key and the byte range of its value.

    Attributes:
        key: The key.
        offset: The byte offset of the value in data.mdb.
        length: The number of bytes of the value.
        is_database: Whether the value is the root of a named database.
    """

    key: bytes
    offset: int
    length: int
    is_database: bool


class _Tree(NamedTuple):
    root: int
    entries: int
    page_size: int


def iter_values(data: NDArray[np.uint8], database: str | None = None) -> Iterator[Value]:
    """Yield the keys of a database in LMDB's order, with the byte ranges of their values.

    Args:
        data: The bytes of data.mdb.
        database: The name of a named database; None for the main one, which has a key for each
            named database.

    Raises:
        DamagedError: The file is truncated or damaged, or not an LMDB.
        LookupError: There is no database of this name.
        ValueError: A key has several values.
    """
    tree = _read_meta(data)
    if database is not None:
        found = next((v for v in _walk(data, tree) if v.key == database.encode()), None)
        if found is None or not found.is_database or found.length != _TREE.size:
            raise LookupError(database)
        tree = _read_tree(data, found.offset, tree.page_size)
    yield from _walk(data, tree)


def _read_meta(data: NDArray[np.uint8]) -> _Tree:
    """Return the main tree, as the meta page of the later transaction describes it."""
    view = data.data
    if len(data) < _META.size or struct.unpack_from("<L", view, 16)[0] != _MAGIC:
        raise DamagedError(f"{len(data):,} bytes are no LMDB, or not one of a 64-bit machine")
    page_size: int = struct.unpack_from("<L", view, _TREES_AT)[0]
    if not 256 <= page_size <= 65_536 or page_size & (page_size - 1):
        raise DamagedError(f"{page_size:,} is no size of a page")
    metas = []
    for start in (0, page_size):
        if start + _META.size > len(data):
            raise DamagedError("cut off in the second meta page")
        magic, version, transaction = _META.unpack_from(view, start)
        if magic != _MAGIC or version != _VERSION:
            raise DamagedError(f"the meta page at byte {start:,} is damaged, or of another version")
        metas.append((transaction, _read_tree(data, start + _TREES_AT + _TREE.size, page_size)))
    return max(metas, key=lambda meta: meta[0])[1]


def _read_tree(data: NDArray[np.uint8], offset: int, page_size: int) -> _Tree:
    *_, entries, root = _TREE.unpack_from(data.data, offset)
    return _Tree(root, entries, page_size)


def _walk(data: NDArray[np.uint8], tree: _Tree) -> Iterator[Value]:
    """Yield a tree's values, by key. Raises DamagedError for a damaged tree, such as a cycle."""
    waiting, seen, count = [tree.root] if tree.root != _NO_ROOT else [], set[int](), 0
    while waiting:
        number = waiting.pop()
        if number in seen:
            raise DamagedError(f"page {number:,} is in the tree twice")
        seen.add(number)
        start = _find_page(data, number, tree.page_size)
        _, _, flags, lower, _ = _PAGE_HEADER.unpack_from(data.data, start)
        size = (lower - _PAGE_HEADER.size) // 2
        if flags & (_BRANCH | _LEAF | _OVERFLOW) not in (_BRANCH, _LEAF) or not (
            size > 0 and lower <= tree.page_size
        ):
            raise DamagedError(f"page {number:,} is no page of a tree")
        nodes = struct.unpack_from(f"<{size}H", data.data, start + _PAGE_HEADER.size)
        if flags & _BRANCH:
            children = [_read_child(data, start, node, tree.page_size) for node in nodes]
            waiting += reversed(children)
            continue
        for node in nodes:
            count += 1
            yield _read_value(data, start, node, tree.page_size)
    if count != tree.entries:
        raise DamagedError(f"{count:,} keys, and not {tree.entries:,} as it says")


def _find_page(data: NDArray[np.uint8], number: int, page_size: int) -> int:
    """Return the byte offset of a page. Raises DamagedError if the page is not there."""
    start = number * page_size
    if start + page_size > len(data):
        raise DamagedError(f"cut off: page {number:,} is past the file's end")
    (stored,) = struct.unpack_from("<Q", data.data, start)
    if stored != number:
        raise DamagedError(f"page {number:,} calls itself page {stored:,}")
    return start


def _read_node(
    data: NDArray[np.uint8], start: int, node: int, page_size: int
) -> tuple[int, int, int, int, int]:
    """Return a node's first three fields (see `_NODE`), and where its key begins and ends.

    The begin and end of the key are byte offsets in data.mdb.

    Args:
        data: The bytes of data.mdb.
        start: The byte offset of the page in data.mdb.
        node: The byte offset of the node in the page.
        page_size: The size of a page in bytes.
    """
    if node + _NODE.size > page_size:
        raise DamagedError(f"the page at byte {start:,} is damaged")
    low, high, flags, key_size = _NODE.unpack_from(data.data, start + node)
    begin = start + node + _NODE.size
    if begin + key_size > start + page_size:
        raise DamagedError(f"the page at byte {start:,} is damaged")
    return low, high, flags, begin, begin + key_size


def _read_child(data: NDArray[np.uint8], start: int, node: int, page_size: int) -> int:
    low, high, flags, _, _ = _read_node(data, start, node, page_size)
    return low | high << 16 | flags << 32


def _read_value(data: NDArray[np.uint8], start: int, node: int, page_size: int) -> Value:
    low, high, flags, begin, end = _read_node(data, start, node, page_size)
    key, length = bytes(data.data[begin:end]), low | high << 16
    if flags & _HAS_DUPLICATES:
        raise ValueError(f"the key {key!r} has several values: write one value a key")
    if not flags & _IN_OVERFLOW:
        if end + length > start + page_size:
            raise DamagedError(f"the page at byte {start:,} is damaged")
        return Value(key, end, length, bool(flags & _IS_TREE))
    if end + 8 > start + page_size:
        raise DamagedError(f"the page at byte {start:,} is damaged")
    (number,) = struct.unpack_from("<Q", data.data, end)
    page = _find_page(data, number, page_size)
    _, _, kind, low, high = _PAGE_HEADER.unpack_from(data.data, page)
    offset, pages = page + _PAGE_HEADER.size, low | high << 16
    if kind & _OVERFLOW == 0 or offset + length > min(len(data), page + pages * page_size):
        raise DamagedError(f"cut off, or damaged: the value of {key!r} is not all in the file")
    return Value(key, offset, length, False)


_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class KeyTemplate:
    """A key with placeholders, each of which stands for one or more characters.

    Attributes:
        text: The template, such as "image-{id}".
        names: The names of its placeholders, in order.
    """

    def __init__(self, text: str) -> None:
        """Parse a template. Raises ValueError if its syntax is wrong or a placeholder repeats."""
        self.text, self.names = text, _PLACEHOLDER.findall(text)
        rest = _PLACEHOLDER.sub("", text)
        if "{" in rest or "}" in rest or len(set(self.names)) != len(self.names):
            raise ValueError(
                f"'{text}' is no template: a placeholder is {{name}}, and none stands twice"
            )
        parts = _PLACEHOLDER.split(text)
        pattern = "".join(
            f"(?P<p_{part}>.+?)" if n % 2 else re.escape(part) for n, part in enumerate(parts)
        )
        self._pattern = re.compile(pattern, re.DOTALL)

    def match(self, key: str) -> dict[str, str] | None:
        """Return the text of each placeholder in a key, by name; None if the key does not match."""
        found = self._pattern.fullmatch(key)
        if found is None:
            return None
        return {name.removeprefix("p_"): text for name, text in found.groupdict().items()}

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the key that results if each placeholder is replaced by its value."""
        return _PLACEHOLDER.sub(lambda found: values[found[1]], self.text)

    @property
    def is_part(self) -> bool:
        """Whether the template is a single placeholder and nothing else."""
        return bool(_PLACEHOLDER.fullmatch(self.text))
