"""The list of finished shards, so that a conversion that was killed goes on where it ended.

`manifest.jsonl` has a line with the settings, and a line for each finished shard. A line is written
after its shard has its final name, so a shard without a line is made again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpupipe.errors import GpupipeError

NAME = "manifest.jsonl"
_VERSION = 1


@dataclass(frozen=True)
class ShardRecord:
    """A finished shard.

    Attributes:
        shard: The name of its file; "" if all of its samples were left out.
        first: The row of the first sample in the source.
        samples: The number of samples in it.
        bytes: The size of its file.
        source_bytes: The size of its fields in the source.
        content: A SHA-256 of the files and arrays in it.
        kinds: The kinds of files of each field, such as jpg.
        changes: How many files were changed, by the kind of the change.
        skipped: The place of each sample that was left out, and why, by its row in the source.
    """

    shard: str
    first: int
    samples: int
    bytes: int
    source_bytes: int
    content: str
    kinds: Mapping[str, list[str]] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)


class Manifest:
    """The finished shards of a conversion.

    Args:
        folder: The folder of the shards.
        settings: What the shards depend on. Plain JSON. `rows`, the number of samples of a shard,
            is that of an earlier run if there is one.

    Attributes:
        rows: How many samples a shard has.
        finished: The finished shards, by their first row.

    Raises:
        GpupipeError: The folder holds something else.
        OSError: The manifest cannot be read or written.
    """

    def __init__(self, folder: Path, settings: dict[str, Any]) -> None:
        self._path = folder / NAME
        self.finished: dict[int, ShardRecord] = {}
        header: dict[str, Any] = {"gpupipe": "convert", "version": _VERSION} | settings
        if self._path.exists():
            header = self._read(header)
        elif any(folder.iterdir()):
            raise GpupipeError(f"{folder} is not empty: name a new folder")
        else:
            self._append(header)
        self.rows: int = header["rows"]

    def _read(self, header: dict[str, Any]) -> dict[str, Any]:
        """Read the finished shards; return the settings of the run that began them."""
        lines = self._path.read_text(encoding="utf-8").split("\n")
        if lines[-1]:  # a kill cut the last line off
            os.truncate(self._path, self._path.stat().st_size - len(lines[-1].encode()))
        records = [json.loads(line) for line in lines[:-1]]
        if not records:
            self._append(header)
            return header
        earlier: dict[str, Any] = records[0]
        differing = [key for key in header if key != "rows" and earlier.get(key) != header[key]]
        if differing:
            key = differing[0]
            raise GpupipeError(
                f"{self._path.parent} holds a conversion with another {key} "
                f"({earlier.get(key)} in place of {header[key]}): name a new folder, or remove it"
            )
        for record in records[1:]:
            finished = ShardRecord(**record)
            if self._is_there(finished):
                self.finished[finished.first] = finished
        return earlier

    def _is_there(self, record: ShardRecord) -> bool:
        path = self._path.with_name(record.shard)
        return not record.shard or (path.is_file() and path.stat().st_size == record.bytes)

    def add(self, record: ShardRecord) -> None:
        """Note a finished shard. Raises OSError if that fails."""
        self._append(asdict(record))
        self.finished[record.first] = record

    def _append(self, record: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
