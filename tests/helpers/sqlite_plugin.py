"""A source of another package, in one file: images and arrays in a table of an SQLite database.

The table is samples(key INTEGER PRIMARY KEY, label INTEGER, image BLOB, depth BLOB).
"""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import labels
from gpupipe.dataset.columns import ArrayLayout, Column, StringArray
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.source import Progress, Source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError


@dataclass(frozen=True)
class BlobColumn(Column):
    """A column of BLOBs. `field` is its name, `keys` the key of each row, int64 (N,)."""

    file: str
    field: str
    keys: NDArray[np.int64]
    array: ArrayLayout | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def read(self, rows: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        keys = self.keys[rows].tolist()
        marks = ",".join("?" * len(keys))
        try:
            with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as database:
                query = f"SELECT key, {self.field} FROM samples WHERE key IN ({marks})"
                blobs = dict(database.execute(query, keys))
        except sqlite3.Error as e:
            raise OSError(f"{self.file}: {e}") from e
        for key in keys:
            if blobs.get(key) is None:
                raise ValueError(f"no {self.field} with key {key} in the table samples")
        return [np.frombuffer(blobs[key], np.uint8) for key in keys]

    def location(self, row: int, name: str) -> str:
        return f"{self.file}:{name}"

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[np.int64]]:
        return [self.keys]

    def take(self, rows: NDArray[np.int64]) -> "BlobColumn":
        layout = None if self.array is None else self.array.take(rows)
        return BlobColumn(self.file, self.field, self.keys[rows], layout)


class Sqlite(Source):
    """The rows of the table `samples`, in the order of their keys.

    Attributes:
        file: The database.
        shape: Shape of the float32 arrays in the column `depth`; null leaves them out.
    """

    name: ClassVar[str] = "sqlite"
    separate_files: ClassVar[bool] = False

    file: Path
    shape: tuple[int, ...] | None = None

    def specs(self) -> dict[str, Spec]:
        array = {} if self.shape is None else {"depth": Spec.of_array("float32", self.shape, "HW")}
        return {"image": Spec()} | array

    def index(self, progress: Progress = ignore_progress) -> Index:
        try:
            with closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as database:
                rows = database.execute("SELECT key, label FROM samples ORDER BY key").fetchall()
        except sqlite3.Error as e:
            raise DataError(f"{self.file}: {e}: set data.file to a database") from e
        if not rows:
            raise DataError(f"{self.file}: the table samples is empty")
        keys, numbers = np.array(rows, np.int64).T
        names = [f"key {key}" for key in keys]
        numbers, classes = labels.from_numbers(numbers, names.__getitem__)
        columns: dict[str, Column] = {"image": BlobColumn(str(self.file), "image", keys)}
        if self.shape is not None:
            layout = ArrayLayout("float32", self.shape)
            columns["depth"] = BlobColumn(str(self.file), "depth", keys, layout)
        return build("", names, numbers, classes, columns=columns)
