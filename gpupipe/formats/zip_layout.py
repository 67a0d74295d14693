"""Lays out a ZIP file without compression, so that its members can be written in any order."""

import struct
from collections.abc import Sequence
from itertools import accumulate

from gpupipe.runtime.files import write_at

_LOCAL = struct.Struct("<4s5H3L2H 2H2Q")
"""A member's own header without its name; it ends in a ZIP64 record, which comes after the name."""
_LOCAL_HEAD = 30
_ENTRY = struct.Struct("<4s6H3L5H2L")
_ENTRY64 = struct.Struct("<2H3Q")
_END = struct.Struct("<4sQ2H2L4Q 4sLQL 4s4H2LH")
"""The end of the directory: the ZIP64 record, where it is, and the record of plain ZIP files."""
_END64_SIZE = 44
_VERSION, _UTF8, _STORED, _NEW_YEAR_1980 = 45, 0x800, 0, 0x21
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF


class ZipLayout:
    """Where the M members of a ZIP file are. The same members always give the same bytes.

    Args:
        names: The path of each member.
        sizes: The bytes of each member.

    Attributes:
        sizes: The bytes of each member.
        begins: The first byte of each member's content in the file.
        size: The bytes of the file.
    """

    def __init__(self, names: Sequence[str], sizes: Sequence[int]) -> None:
        self._names, self.sizes = [name.encode() for name in names], sizes
        pairs = zip(self._names, sizes, strict=True)
        ends = list(accumulate((_LOCAL.size + len(name) + size for name, size in pairs), initial=0))
        self._headers, self._directory = ends[:-1], ends[-1]
        self.begins = [end - size for end, size in zip(ends[1:], sizes, strict=True)]
        entries = sum(_ENTRY.size + len(name) + _ENTRY64.size for name in self._names)
        self._entries = entries
        self.size = self._directory + entries + _END.size

    def write(self, file: int, crcs: Sequence[int]) -> None:
        """Write all but the contents of the members to an open file.

        Args:
            file: The file's number.
            crcs: The CRC-32 of each member.
        """
        directory = []
        for name, header, size, crc in zip(
            self._names, self._headers, self.sizes, crcs, strict=True
        ):
            common = (_VERSION, _UTF8, _STORED, 0, _NEW_YEAR_1980, crc, _FULL32, _FULL32)
            local = _LOCAL.pack(b"PK\3\4", *common, len(name), 20, 1, 16, size, size)
            write_at(file, header, local[:_LOCAL_HEAD] + name + local[_LOCAL_HEAD:])
            entry = (b"PK\1\2", _VERSION, *common, len(name), _ENTRY64.size, 0, 0, 0, 0, _FULL32)
            directory += [_ENTRY.pack(*entry), name, _ENTRY64.pack(1, 24, size, size, header)]
        count, begin, entries = len(self._names), self._directory, self._entries
        end = _END.pack(
            *(b"PK\6\6", _END64_SIZE, _VERSION, _VERSION, 0, 0, count, count, entries, begin),
            *(b"PK\6\7", 0, begin + entries, 1),
            *(b"PK\5\6", _FULL16, _FULL16, _FULL16, _FULL16, _FULL32, _FULL32, 0),
        )
        write_at(file, begin, b"".join([*directory, end]))
