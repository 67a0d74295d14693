"""Manifests that tests write, and what file_list makes of them."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from gpupipe.dataset.index import Index
from gpupipe.errors import DataError
from gpupipe.sources.file_list import FileList


def written(file: Path, content: str | bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def listed(file: Path, content: str | bytes, **options: Any) -> Index:
    return FileList(file=written(file, content), **options).index()


def found(index: Index) -> list[tuple[str, str]]:
    """(path relative to the root, class) of every row; the class is "" without labels."""
    return [
        (
            index.location(i).removeprefix(f"{index.root}/"),
            index.classes[label] if index.has_labels else "",
        )
        for i, label in enumerate(index.labels)
    ]


def names(index: Index) -> list[str]:
    return [name for name, _ in found(index)]


def refused(file: Path, content: str | bytes, **options: Any) -> str:
    """What the DataError says behind the name of the manifest."""
    with pytest.raises(DataError) as error:
        listed(file, content, **options)
    said = str(error.value)
    assert "\n" not in said
    assert said.startswith(f"{file}:")
    return said.removeprefix(f"{file}:")


def save_parquet(file: Path, **columns: Any) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), file)
    return file
