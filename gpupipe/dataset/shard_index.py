"""Join the indexes of single shards into the index of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import labels as classes_of
from gpupipe.dataset.columns import ArrayLayout, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.index import Index, build
from gpupipe.errors import DataError, counted


@dataclass
class ByteRanges:
    """The byte ranges of one field in a shard of N samples.

    Attributes:
        offset: The first byte of each sample, int64 (N,).
        length: The number of bytes of each sample, int64 (N,).
        dtype: NumPy's name of the dtype of an array; "" for image files.
        shapes: The shape of each array, int64 (N, axes); None for image files.
    """

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    dtype: str = ""
    shapes: NDArray[np.int64] | None = None


@dataclass
class ShardFile:
    """The samples of a shard, or of a part of one.

    Attributes:
        names: The names of the samples.
        fields: The byte ranges of each field, by the field's name.
        labels: The labels, as texts or numbers; None if there are none.
        values: Further numbers of each sample, (N,) or (N, n), by name.
        path: The file that holds the bytes; None if it is the shard itself.
    """

    names: list[str]
    fields: dict[str, ByteRanges]
    labels: list[str] | NDArray[np.int64] | None = None
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    path: Path | None = None


def join_shards(
    files: Sequence[Path], found: Sequence[Sequence[ShardFile]], otherwise: str
) -> Index:
    """Build the index of all samples in shards.

    Args:
        files: The shards.
        found: The parts of each shard.
        otherwise: What to do if there is no sample, for the error message.

    Raises:
        DataError: There is no sample, or shards differ in dtype, axes or kind of label.
    """
    holding = [
        (shard.path or path, shard)
        for path, parts in zip(files, found, strict=True)
        for shard in parts
        if shard.names
    ]
    if not holding:
        raise DataError(f"{files[0]}: no sample in {counted(len(files), 'shard')}: {otherwise}")
    every = [shard for _, shard in holding]
    numbers = {path: n for n, path in enumerate(dict.fromkeys(path for path, _ in holding))}
    file = np.repeat(
        np.array([numbers[path] for path, _ in holding], np.int32),
        [len(shard.names) for shard in every],
    )
    named = StringArray.from_strings(map(str, numbers))
    names = [name for shard in every for name in shard.names]
    columns = {name: _column(name, holding, named, file) for name in every[0].fields}
    values = {name: _value(name, holding) for name in every[0].values}
    labels, classes = _labels(every, lambda i: f"{named[int(file[i])]}:{names[i]}")
    return build("", names, labels, classes, columns=dict(columns), values=values)


def _column(
    name: str, holding: list[tuple[Path, ShardFile]], named: StringArray, file: NDArray[np.int32]
) -> SpanColumn:
    pieces = [shard.fields[name] for _, shard in holding]
    offset, length = (
        np.concatenate([getattr(p, part) for p in pieces]) for part in ("offset", "length")
    )
    return SpanColumn("", named, file, offset, length, _array(name, holding))


def _array(name: str, holding: list[tuple[Path, ShardFile]]) -> ArrayLayout | None:
    (_, first), *others = holding
    like = first.fields[name]
    for path, shard in others:
        other = shard.fields[name]
        if other.dtype != like.dtype:
            raise DataError(
                f"{path}: the field '{name}' is of {other.dtype or 'image files'}, but of "
                f"{like.dtype or 'image files'} in {holding[0][0]}"
            )
        if (
            other.shapes is not None
            and like.shapes is not None
            and other.shapes.shape[1] != like.shapes.shape[1]
        ):
            axes = (counted(s.shape[1], "axis", "axes") for s in (other.shapes, like.shapes))
            raise DataError(
                f"{path}: the field '{name}' has {next(axes)}, but {next(axes)} in {holding[0][0]}"
            )
    if like.shapes is None:
        return None
    shapes = np.concatenate([shard.fields[name].shapes for _, shard in holding])
    same = bool((shapes == shapes[0]).all())
    return ArrayLayout(
        like.dtype, tuple(shapes[0].tolist()) if same else None, None if same else shapes
    )


def _value(name: str, holding: list[tuple[Path, ShardFile]]) -> NDArray[Any]:
    arrays = [shard.values[name] for _, shard in holding]
    for (path, _), array in zip(holding, arrays, strict=True):
        if array.shape[1:] != arrays[0].shape[1:]:
            sizes = (counted(int(np.prod(a.shape[1:])), "number") for a in (array, arrays[0]))
            raise DataError(
                f"{path}: the value '{name}' is {next(sizes)}, but {next(sizes)} in {holding[0][0]}"
            )
    return np.concatenate(arrays)


def _labels(
    shards: list[ShardFile], where: classes_of.Where
) -> tuple[NDArray[np.int64], list[str]]:
    by_shard: list[Any] = [shard.labels for shard in shards]
    if by_shard[0] is None:
        return classes_of.make_unlabelled(sum(len(shard.names) for shard in shards))
    if all(isinstance(labels, np.ndarray) for labels in by_shard):
        return classes_of.from_numbers(np.concatenate(by_shard), where)
    return classes_of.from_texts([str(label) for labels in by_shard for label in labels], where)
