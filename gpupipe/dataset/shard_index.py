"""The index of all samples in shards, out of what each shard says of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpupipe.dataset import labels as classes_of
from gpupipe.dataset.index import ArrayLayout, Index, SpanColumn, StringArray, build
from gpupipe.errors import DataError, counted


@dataclass
class Pieces:
    """Where the bytes of one field are in a shard. offset, length: int64 (N,). dtype: of numbers;
    "" of image files.

    shapes: of numbers, int64 (N, axes).
    """

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    dtype: str = ""
    shapes: NDArray[np.int64] | None = None


@dataclass
class ShardFile:
    """What a shard, or a part of one, says of its samples: their names, the pieces and values of
    each field, and the labels.

    labels: texts or numbers; None: there are none.
    """

    names: list[str]
    fields: dict[str, Pieces]
    labels: list[str] | NDArray[np.int64] | None = None
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    path: Path | None = None
    """The file that the pieces are in, where it is not the shard."""


def joined(files: Sequence[Path], found: Sequence[Sequence[ShardFile]], otherwise: str) -> Index:
    """The index of all samples. found: of each file, what its parts say.

    Raises DataError where there are no samples (`otherwise` says what to do), or shards or labels
    do not fit each other.
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
    named = StringArray.of(map(str, numbers))
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
        np.concatenate([getattr(p, what) for p in pieces]) for what in ("offset", "length")
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
            told = (counted(int(np.prod(a.shape[1:])), "number") for a in (array, arrays[0]))
            raise DataError(
                f"{path}: the value '{name}' is {next(told)}, but {next(told)} in {holding[0][0]}"
            )
    return np.concatenate(arrays)


def _labels(
    shards: list[ShardFile], where: classes_of.Where
) -> tuple[NDArray[np.int64], list[str]]:
    found: list[Any] = [shard.labels for shard in shards]
    if found[0] is None:
        return classes_of.none(sum(len(shard.names) for shard in shards))
    if all(isinstance(labels, np.ndarray) for labels in found):
        return classes_of.of_numbers(np.concatenate(found), where)
    return classes_of.of_texts([str(label) for labels in found for label in labels], where)
