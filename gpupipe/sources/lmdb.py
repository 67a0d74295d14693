"""lmdb: image files that are the values of an LMDB database."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, field_validator, model_validator

from gpupipe.dataset import labels
from gpupipe.dataset.columns import Column, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.paths import check_manifest_path, missing_file
from gpupipe.dataset.reading import map_file
from gpupipe.dataset.shards import name_shard
from gpupipe.dataset.source import Progress
from gpupipe.decoders.image_header import read_header
from gpupipe.errors import DataError, counted, short
from gpupipe.formats import lmdb_keys, manifest
from gpupipe.formats.lmdb_keys import KeyTemplate
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.schema.field_types import expand_home

_FILE = "data.mdb"
_MAIN = "image"
_COUNTS = frozenset({"__len__", "__keys__", "__classes__", "num-samples", "num_samples", "length"})
"""Keys of metadata that common tools store beside the images."""
_MAX_TEXT = 4096
_TICK = 100_000
_FEW = 3

Location = tuple[int, int]
"""Byte offset and length of a value in data.mdb."""


class Lmdb(FileSource):
    """The values of an LMDB database: each is an image file. They are read where they are.

    Pickled values and Caffe's messages are refused. The samples are in the order of their keys, or
    with a manifest in its order.

    Attributes:
        path: The folder with data.mdb, or the file itself. ~ stands for the home directory.
        database: The name of a database in that file; null for the main database.
        fields: The keys of the image files of each field: {FIELD: KEYS}, where FIELD is the name in
            a batch. "image-{id}" stands for the keys image-0, image-1 and so on; "{key}" for all
            keys. Further fields may use only the placeholders of the first field.
        label: Where the label is: the key of a text, such as "label-{id}", or a placeholder of the
            first field, such as "{class}" of "{class}/{name}". null means that there are no labels.
        manifest: A list with the columns `key` and `label`, in place of the option `label`. It is a
            .csv, .tsv or .parquet, or a .txt with a key and a label in each line. Only the keys in
            the list are samples.
    """

    name: ClassVar[str] = "lmdb"

    path: Annotated[Path, AfterValidator(expand_home)]
    database: str | None = None
    fields: dict[str, str] = Field(default={_MAIN: "{key}"}, min_length=1)
    label: str | None = None
    manifest: Annotated[Path, AfterValidator(check_manifest_path)] | None = None

    @field_validator("fields")
    @classmethod
    def _fields_are_templates(cls, fields: dict[str, str]) -> dict[str, str]:
        first, *others = (KeyTemplate(text) for text in fields.values())
        for template in others:
            _check_placeholders(template, first)
        return fields

    @model_validator(mode="after")
    def _label_fits(self) -> "Lmdb":
        if self.label is not None and self.manifest is not None:
            raise ValueError("the labels are in data.manifest: leave out data.label")
        if self.label is not None:
            _check_placeholders(KeyTemplate(self.label), self._first)
        return self

    @property
    def _first(self) -> KeyTemplate:
        return KeyTemplate(next(iter(self.fields.values())))

    @property
    def _file(self) -> Path:
        inner = self.path / _FILE
        return inner if inner.is_file() else self.path

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return list(self.fields), ()

    def list_files(self) -> list[Path]:
        if self._file.is_file():
            return [self._file]
        advice = f"set data.path to a folder with {_FILE}"
        if self.path.is_dir():
            raise DataError(f"{self.path}: no LMDB database, since it has no {_FILE}: {advice}")
        raise missing_file(self.path, "data.path", advice)

    def find_companions(self, files: list[Path]) -> list[Path]:
        return [self.manifest] if self.manifest else []

    def explain_absence(self) -> str:
        return "" if self._file.is_file() else f"{self.path}: no LMDB is there: set data.path"

    def build(self, files: list[Path], progress: Progress) -> Index:
        with name_shard(self._file):
            data = map_file(self._file)
            locations = self._list_values(data, progress)
            samples, texts = self._choose(locations)
            columns: dict[str, Column] = {}
            for name, text in self.fields.items():
                template = KeyTemplate(text)
                keys = (
                    [template.fill(parts) for parts in samples.values()] if columns else [*samples]
                )
                columns[name] = self._make_column(data, locations, keys)
            names = [_show(key) for key in samples]
            if self.label is not None:
                texts = list(self._iter_labels(data, locations, samples))
        chosen = labels.number_classes(texts, len(names), lambda i: f"{self._file}:{names[i]}")
        return build(str(self._file.parent), names, *chosen, columns=columns)

    def _list_values(self, data: NDArray[np.uint8], progress: Progress) -> dict[str, Location]:
        locations, databases = dict[str, Location](), []
        try:
            for value in lmdb_keys.iter_values(data, self.database):
                key = os.fsdecode(value.key)
                if value.is_database:
                    databases.append(key)
                    continue
                locations[key] = (value.offset, value.length)
                if len(locations) % _TICK == 0:
                    progress("reading keys", len(locations), None)
        except LookupError as e:
            raise ValueError(f"no database '{self.database}' in it: see data.database") from e
        if databases and not locations:
            raise ValueError(
                f"it only holds other databases: set data.database to {' or '.join(databases)}"
            )
        return locations

    def _choose(
        self, locations: Mapping[str, Location]
    ) -> tuple[dict[str, dict[str, str]], list[str] | None]:
        """Choose the samples among the keys, or read them from the manifest.

        Returns:
            A dict from the key of each sample to the values of the placeholders in that key, by
            the name of the placeholder.
            The labels in the manifest; None if there is no manifest, or if it has no labels.
        """
        template = self._first
        if self.manifest is not None:
            return self._read_manifest(self.manifest, locations, template)
        samples = {
            key: parts
            for key in locations
            if (parts := template.match(key)) is not None
            and not (template.is_part and key in _COUNTS)
        }
        if not samples:
            few = ", ".join(_show(key) for key in list(locations)[:_FEW])
            raise ValueError(
                f"none of {counted(len(locations), 'key')} is like '{template.text}'"
                f"{f'; there are {few}' if few else ''}: set data.fields"
            )
        return samples, None

    def _read_manifest(
        self, file: Path, locations: Mapping[str, Location], template: KeyTemplate
    ) -> tuple[dict[str, dict[str, str]], list[str] | None]:
        rows = manifest.read(file, ManifestColumns({_MAIN: "key"}, "label"), lambda count: None)
        samples: dict[str, dict[str, str]] = {}
        for row, key in enumerate(rows.paths[_MAIN]):
            if key not in locations or key in samples:
                what = "is listed twice" if key in samples else f"is not in {self._file}"
                raise DataError(f"{rows.where(row)}: the key '{short(key)}' {what}")
            parts = template.match(key)
            if parts is None:
                raise DataError(f"{rows.where(row)}: '{short(key)}' is not like '{template.text}'")
            samples[key] = parts
        if not samples:
            raise DataError(f"{file}: no rows: list at least one key, a line each")
        return samples, rows.labels or None

    def _make_column(
        self, data: NDArray[np.uint8], locations: Mapping[str, Location], keys: list[str]
    ) -> SpanColumn:
        missing = next((key for key in keys if key not in locations), None)
        if missing is not None:
            raise ValueError(f"no key '{_show(missing)}': see data.fields")
        offset, length = np.array([locations[key] for key in keys], np.int64).T
        _check_image(data[offset[0] : offset[0] + length[0]], keys)
        files = StringArray.from_strings([self._file.name])
        zeros = np.zeros(len(keys), np.int32)
        return SpanColumn(str(self._file.parent), files, zeros, offset.copy(), length.copy())

    def _iter_labels(
        self,
        data: NDArray[np.uint8],
        locations: Mapping[str, Location],
        samples: Mapping[str, Mapping[str, str]],
    ) -> Iterator[str]:
        assert self.label is not None
        template = KeyTemplate(self.label)
        for parts in samples.values():
            if template.is_part:
                yield parts[template.names[0]]
                continue
            key = template.fill(parts)
            if key not in locations:
                raise ValueError(f"no key '{_show(key)}': see data.label")
            offset, length = locations[key]
            yield _read_text(data[offset : offset + min(length, _MAX_TEXT + 1)], key)


def _check_placeholders(template: KeyTemplate, first: KeyTemplate) -> None:
    unknown = [name for name in template.names if name not in first.names]
    if unknown or not template.names:
        known = ", ".join(f"{{{name}}}" for name in first.names) or "none"
        raise ValueError(
            f"'{template.text}' should be made of the placeholders of '{first.text}': {known}"
        )


def _check_image(data: NDArray[np.uint8], keys: list[str]) -> None:
    """Raise ValueError unless `data`, the value of the first of `keys`, is an image file."""
    content = data[: 1 << 16].tobytes()
    if read_header(data).format:
        return
    key = _show(keys[0])
    _refuse_pickle(content, key)
    if content[:1] in (b"\x08", b"\x0a"):
        raise ValueError(
            f"the value of {key} looks like a protocol buffer, such as Caffe's Datum, and is no "
            "image file: write the image files themselves as values"
        )
    others = ", ".join(_show(k) for k in keys[1 : 1 + _FEW])
    raise ValueError(
        f"the value of {key} is no image file in a known format"
        f"{f' (further keys are {others})' if others else ''}: set data.fields to the keys of "
        "images, such as {image: 'image-{id}'}"
    )


def _refuse_pickle(content: bytes, key: str) -> None:
    """Raise ValueError if bytes begin as a pickle of protocol 2 or later does."""
    if content[:1] == b"\x80" and content[1:2] in (b"\2", b"\3", b"\4", b"\5"):
        raise ValueError(
            f"the value of {key} is a Python pickle, which could run any code when it is read, so "
            "gpupipe reads none: write image files as they are, and labels as text under keys of "
            "their own"
        )


def _read_text(data: NDArray[np.uint8], key: str) -> str:
    content = data.tobytes()
    _refuse_pickle(content, _show(key))
    try:
        text = content.decode().strip()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text or len(content) > _MAX_TEXT:
        raise ValueError(
            f"the value of {_show(key)} is no label: a label is the text of a number from 0 on, "
            "or of a name"
        )
    return text


def _show(key: str) -> str:
    """Return a key for messages: unchanged if it is printable, else in hexadecimal digits."""
    return key if key.isprintable() else f"0x{os.fsencode(key).hex()}"
