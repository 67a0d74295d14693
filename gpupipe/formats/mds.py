"""Parse shards in the format MDS of MosaicML's Streaming, and find each column of each sample.

A shard holds the number of samples N and N + 1 offsets, uint32 and little-endian; JSON that
describes the columns; and the samples. A sample holds the sizes of its columns of unknown size,
uint32 each, and then its columns. The format is described by the package's own writer and reader,
in https://github.com/mosaicml/streaming under streaming/base/format/mds.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.formats import DamagedError

Bytes = NDArray[np.uint8]
_MAX_CONFIG = 1 << 24
_NUMBERS = re.compile(r"u?int(?:8|16|32|64)|float(?:16|32|64)")
_ARRAY = re.compile(r"ndarray:([a-z0-9]+):([0-9]+(?:,[0-9]+)*)")
IMAGES = frozenset({"bytes", "jpeg", "png"})
"""Encodings of columns that hold the bytes of a file."""
TEXTS = frozenset({"str", "str_int"})


@dataclass(frozen=True)
class MdsColumn:
    """A column of a shard of N samples.

    Attributes:
        encoding: Streaming's name of the encoding, such as "jpeg" or "ndarray:float32:3,8,8".
        begin: Where the bytes of each sample begin in the file, int64 (N,).
        end: Where they end, int64 (N,).
    """

    encoding: str
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    @property
    def array(self) -> tuple[str, tuple[int, ...]] | None:
        """The dtype and the shape of a column of arrays of one shape; None for other columns."""
        match = _ARRAY.fullmatch(self.encoding)
        if match is None or not _NUMBERS.fullmatch(match[1]):
            return None
        return match[1], tuple(map(int, match[2].split(",")))

    @property
    def is_number(self) -> bool:
        """Whether each sample has one number."""
        return self.encoding == "int" or bool(_NUMBERS.fullmatch(self.encoding))

    def read_numbers(self, data: Bytes) -> NDArray[Any]:
        """Return the number of each sample, (N,). The column must be one of numbers.

        Raises DamagedError if a sample has too few or too many bytes.
        """
        dtype = np.dtype("int64" if self.encoding == "int" else self.encoding).newbyteorder("<")
        if ((self.end - self.begin) != dtype.itemsize).any():
            raise DamagedError(f"a number of the type {self.encoding} of another size")
        parts = data[self.begin[:, None] + np.arange(dtype.itemsize)]
        numbers: NDArray[Any] = parts.view(dtype)[:, 0].astype(dtype.newbyteorder("="))
        return numbers

    def read_texts(self, data: Bytes) -> list[str]:
        """Return the text of each sample. The column must be one of texts."""
        spans = zip(self.begin.tolist(), self.end.tolist(), strict=True)
        return [data[a:b].tobytes().decode("utf-8", "surrogateescape") for a, b in spans]


def parse_shard(data: Bytes) -> dict[str, MdsColumn]:
    """Return the columns of a shard, by name.

    Raises:
        DamagedError: The bytes are no whole shard.
        ValueError: The shard is of a kind that gpupipe does not read.
    """
    if data[:4].tobytes() == b"\x28\xb5\x2f\xfd":
        raise ValueError("compressed with zstd: write it without compression, or unpack it")
    count = _read_uint32(data, 0, 1)[0] if len(data) >= 4 else 0
    head = 4 * (int(count) + 2)
    if head > len(data):
        raise DamagedError(f"{len(data):,} bytes, but a header for {count:,} samples: no whole MDS")
    offsets = _read_uint32(data, 4, int(count) + 1).astype(np.int64)
    config = _parse_config(data[head : int(offsets[0])].tobytes() if offsets[0] > head else b"")
    if (np.diff(offsets) < 0).any() or int(offsets[-1]) != len(data):
        raise DamagedError(
            f"its samples end at byte {int(offsets[-1]):,} of {len(data):,}: it is not whole"
        )
    return _locate_columns(data, offsets, config)


def _read_uint32(data: Bytes, begin: int, count: int) -> NDArray[np.uint32]:
    return np.frombuffer(data[begin : begin + 4 * count].tobytes(), "<u4")


def _parse_config(text: bytes) -> list[tuple[str, str, int | None]]:
    """Return the name, the encoding and the size of each column; None for an unknown size."""
    try:
        if len(text) > _MAX_CONFIG:
            raise ValueError("too long")
        config = json.loads(text)
        names, encodings = config["column_names"], config["column_encodings"]
        columns = list(zip(names, encodings, config["column_sizes"], strict=True))
        are_valid = len(set(names)) == len(names) and all(
            isinstance(name, str)
            and isinstance(encoding, str)
            and (size is None or (type(size) is int and 0 <= size < 2**32))
            for name, encoding, size in columns
        )
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise DamagedError(f"no description of its columns ({type(e).__name__}): no MDS") from e
    if not columns or not are_valid:
        raise DamagedError("a description of its columns that cannot be right: no MDS")
    return columns


def _locate_columns(
    data: Bytes, offsets: NDArray[np.int64], config: list[tuple[str, str, int | None]]
) -> dict[str, MdsColumn]:
    begin, end = offsets[:-1], offsets[1:]
    unknown = [name for name, _, size in config if size is None]
    if (end - begin < 4 * len(unknown)).any():
        raise DamagedError("a sample that is shorter than the sizes of its columns")
    at, columns = begin + 4 * len(unknown), {}
    for name, encoding, size in config:
        if size is None:
            places = (begin + 4 * unknown.index(name))[:, None] + np.arange(4)
            sizes = data[places].view("<u4")[:, 0].astype(np.int64)
        else:
            sizes = np.full(len(begin), size, np.int64)
        columns[name] = MdsColumn(encoding, at, at + sizes)
        at = at + sizes
        if (at > end).any():
            raise DamagedError(f"a sample whose column '{name}' ends beyond it")
    if (at != end).any():
        raise DamagedError("a sample that is longer than its columns")
    return columns
