"""Writes Parquet shards as Hugging Face's data sets have them, and reads them back."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpupipe.conversion.plan import LABEL, StoragePlan
from gpupipe.conversion.samples import ConvertedSample
from gpupipe.conversion.shard_contents import StoredShard
from gpupipe.dataset.index import Index
from gpupipe.dataset.labels import join_labels
from gpupipe.dataset.list_columns import LABELS
from gpupipe.dataset.npy_fields import read_header
from gpupipe.formats import arrow_columns
from gpupipe.formats.arrow_values import LabelsAndValues

SUFFIX = ".parquet"
_GROUP_BYTES, _GROUP_ROWS = 16_000_000, 4096
"""The most of a row group, which readers load at once."""
_ROWS_AT_ONCE = 16
_NPY_FEATURE = {
    "bytes": {"dtype": "binary", "_type": "Value"},
    "path": {"dtype": "string", "_type": "Value"},
}
"""The feature of arrays, which are .npy files with their names."""


class ParquetWriter:
    """Writes one shard: a column of images or .npy files with `bytes` and `path` for each field.

    Images are compressed already, so pages are not. The schema has the features of Hugging Face's
    data sets, which decode the images and name the classes by it.

    Args:
        plan: How samples are stored.
        index: The samples.
        path: The file to write.
    """

    def __init__(self, plan: StoragePlan, index: Index, path: Path) -> None:
        import pyarrow.parquet

        self._schema = _make_schema(plan, index)
        self._file = path.open("wb")
        self._writer = pyarrow.parquet.ParquetWriter(
            self._file,
            self._schema,
            compression="none",
            use_dictionary=False,
            write_statistics=False,
        )
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def add(self, sample: ConvertedSample) -> None:
        row: dict[str, Any] = {**sample.values, **sample.lists}
        for name, content in sample.contents.items():
            path = f"{sample.row:09d}.{content.kind}"
            row[name] = {"bytes": content.data, "path": path}
            self._bytes += len(content.data)
        if sample.label is not None:
            row[LABEL] = sample.label
        self._rows.append(row)
        if self._bytes >= _GROUP_BYTES or len(self._rows) >= _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._rows:
            self._writer.write_table(pa.Table.from_pylist(self._rows, self._schema))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        self._write_group()
        self._writer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abort(self) -> None:
        with suppress(Exception):
            self._writer.close()
        self._writer.is_open = False  # else its destructor writes the end again, and prints why not
        with suppress(OSError):
            self._file.close()


def read_back(plan: StoragePlan, path: Path) -> StoredShard:
    """Read a shard with what the source parquet reads it with."""
    others = LabelsAndValues(
        LABEL if plan.has_label else None,
        {name: name for name in plan.values},
        {name: column.place for name, column in plan.lists.items()},
    )
    digests: dict[str, list[bytes]] = {field.name: [] for field in plan.fields}
    arrays = {field.name for field in plan.fields if field.is_array}
    with arrow_columns.open_parquet(path) as table:
        columns = [*digests, *others.find_columns(table.schema_arrow.names)]
        for rows in arrow_columns.iter_rows(table, columns, _ROWS_AT_ONCE):
            others.add(rows)
            for name, found in digests.items():
                for content in arrow_columns.find_bytes(rows.column(name), name):
                    data = memoryview(content.as_buffer())
                    if name in arrays:
                        data = data[read_header(name, data).offset :]
                    found.append(hashlib.sha256(data).digest())
    labels = join_labels(others.labels)
    whole = None if labels is None else [int(label) for label in labels]
    return StoredShard(digests, whole, others.join_values(), others.join_lists())


def _make_schema(plan: StoragePlan, index: Index) -> Any:
    """Return the pyarrow.Schema, with the features of Hugging Face's data sets in its metadata."""
    import pyarrow as pa

    has_names = bool(plan.classes) and len(set(plan.classes)) == len(plan.classes)
    number = {"i": (pa.int64(), "int64"), "f": (pa.float64(), "float64")}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    fields: list[Any] = [(field.name, image) for field in plan.fields]
    features: dict[str, Any] = {
        field.name: _NPY_FEATURE if field.is_array else {"_type": "Image"} for field in plan.fields
    }
    if plan.has_label:
        fields.append((LABEL, pa.int64()))
        features[LABEL] = {"dtype": "int64", "_type": "Value"}
        if has_names:
            features[LABEL] = {"names": list(plan.classes), "_type": "ClassLabel"}
    for name in plan.values:
        kind, text = number[index.values[name].dtype.kind]
        fields.append((name, kind))
        features[name] = {"dtype": text, "_type": "Value"}
    for name, column in plan.lists.items():
        is_whole = column.kind is None and column.find_dtype(name) == "int64"
        kind, text = number["i" if is_whole else "f"]
        feature: dict[str, Any] = {"dtype": text, "_type": "Value"}
        if name == LABELS and has_names and not plan.has_label:
            feature = {"names": list(plan.classes), "_type": "ClassLabel"}
        for _ in range(2 if column.kind else 1):
            kind, feature = pa.list_(kind), {"feature": feature, "_type": "Sequence"}
        fields.append((name, kind))
        features[name] = feature
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.schema(fields, metadata)
