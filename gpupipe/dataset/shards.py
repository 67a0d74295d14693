"""Sources whose samples are in shards, large files with many samples each.

A subclass of ShardedSource reads a shard as ShardFiles: the names, labels and byte ranges of its
samples. `join_shards` builds the index from all ShardFiles.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gpupipe.dataset.braces import MAX_SHARDS, expand_braces, leave_out_indexes
from gpupipe.dataset.class_names import number_labels
from gpupipe.dataset.columns import ArrayLayout, Column, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index, build, spans_of
from gpupipe.dataset.labels import join_labels
from gpupipe.dataset.layout import default_layout, explain_wrong_layout
from gpupipe.dataset.paths import missing_file, name_file
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, NoSamplesError, counted
from gpupipe.formats.list_values import ListValues
from gpupipe.schema.field_types import WHOLE, expand_home


def _check_dtype(dtype: str) -> str:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "iufb" or kind.name != dtype:
        raise ValueError(
            "a dtype is float16, float32, float64, int8 to int64, uint8 to uint64, or bool"
        )
    return dtype


Dtype = Annotated[str, AfterValidator(_check_dtype)]
Shape = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**31), WHOLE], ...], Field(min_length=1, max_length=8)
]


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

    def describe(self) -> str:
        """Return the field's type, such as "image files" or "float32 with 2 axes".

        All shards of a data set must have the same type here.
        """
        if self.shapes is None:
            return self.dtype or "image files"
        return f"{self.dtype} with {counted(self.shapes.shape[1], 'axis', 'axes')}"


@dataclass
class ShardFile:
    """The samples of a shard, or of a part of one.

    Attributes:
        names: The names of the samples.
        fields: Maps the name of each field to its byte ranges.
        labels: The labels, as texts or numbers; None if there are none.
        values: Maps the name of each further value to its numbers, (N,) or (N, n).
        path: The file that holds the bytes; None if it is the shard itself.
        lists: Maps the name of each field of annotations to its lists.
    """

    names: list[str]
    fields: dict[str, ByteRanges]
    labels: list[str] | NDArray[np.int64] | None = None
    values: dict[str, NDArray[Any]] = field(default_factory=dict)
    path: Path | None = None
    lists: dict[str, ListValues] = field(default_factory=dict)


def join_shards(
    files: Sequence[Path],
    parts: Sequence[Sequence[ShardFile]],
    otherwise: str,
    classes: Sequence[str] = (),
) -> Index:
    """Build the index of all samples in shards.

    Args:
        files: The shards.
        parts: The ShardFiles that were read from each shard.
        otherwise: Tells the user what to do, in the message for shards without samples.
        classes: The names of the classes; () to take them from the labels.

    Raises:
        NoSamplesError: All shards are empty.
        DataError: The shards have contents but no sample, a label is none of `classes`, or shards
            differ in dtype, axes or kind of label.
    """
    holding = [
        (shard.path or path, shard)
        for path, shards in zip(files, parts, strict=True)
        for shard in shards
        if shard.names
    ]
    if not holding:
        kind = DataError if any(parts) else NoSamplesError
        raise kind(f"{files[0]}: no sample in {counted(len(files), 'shard')}: {otherwise}")
    every = [shard for _, shard in holding]
    numbers = {path: n for n, path in enumerate(dict.fromkeys(path for path, _ in holding))}
    file = np.repeat(
        np.array([numbers[path] for path, _ in holding], np.int32),
        [len(shard.names) for shard in every],
    )
    paths = StringArray.from_strings(map(str, numbers))
    names = [name for shard in every for name in shard.names]
    columns: dict[str, Column] = {}
    for name in every[0].fields:
        layout, ranges = _join_layouts(name, holding), [shard.fields[name] for shard in every]
        offset = np.concatenate([part.offset for part in ranges])
        length = np.concatenate([part.length for part in ranges])
        columns[name] = SpanColumn("", paths, file, offset, length, layout)
    values = {name: _join_values(name, holding) for name in every[0].values}
    labels = join_labels([shard.labels for shard in every if shard.labels is not None])
    named = number_labels(
        labels, len(names), lambda i: f"{paths[int(file[i])]}:{names[i]}", classes
    )
    return build("", names, *named, columns=columns, values=values)


def _join_layouts(name: str, holding: Sequence[tuple[Path, ShardFile]]) -> ArrayLayout | None:
    """Return the layout of a field of arrays; None for a field of image files.

    Raises DataError if the shards differ in the field's dtype or number of axes.
    """
    every = [(path, shard.fields[name]) for path, shard in holding]
    path, first = every[0]
    for other, ranges in every:
        if ranges.describe() != first.describe():
            raise DataError(
                f"{other}: the field '{name}' is of {ranges.describe()}, but of "
                f"{first.describe()} in {path}"
            )
    if first.shapes is None:
        return None
    shapes = [ranges.shapes for _, ranges in every if ranges.shapes is not None]
    return ArrayLayout.of_shapes(first.dtype, np.concatenate(shapes))


def _join_values(name: str, holding: Sequence[tuple[Path, ShardFile]]) -> NDArray[Any]:
    arrays = [shard.values[name] for _, shard in holding]
    for (path, _), array in zip(holding, arrays, strict=True):
        if array.shape[1:] != arrays[0].shape[1:]:
            sizes = (counted(int(np.prod(a.shape[1:])), "number") for a in (array, arrays[0]))
            raise DataError(
                f"{path}: the value '{name}' is {next(sizes)}, but {next(sizes)} in {holding[0][0]}"
            )
    return np.concatenate(arrays)


class ShardedSource(FileSource):
    """The base of sources whose samples are in shards.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
    """

    shards: str | tuple[str, ...] = Field(min_length=1)

    def list_files(self) -> list[Path]:
        return [Path(name) for name in leave_out_indexes(map(str, find_files(self.shards)))]

    @abstractmethod
    def read(self, path: Path) -> list[ShardFile]:
        """List the samples of one shard, as one ShardFile or several; [] if it is empty.

        Several threads call this at once.

        Raises:
            DataError: The shard cannot be read, or holds data that gpupipe does not support.
        """

    def join(self, files: list[Path], parts: list[list[ShardFile]]) -> Index:
        return join_shards(files, parts, self.explain_empty(), self.class_names)

    @property
    def class_names(self) -> Sequence[str]:
        """The names of the classes; () if the labels name them."""
        return ()

    def is_usable(self, index: Index) -> bool:
        """Return whether all files that hold the samples' bytes exist.

        Some may have been removed from the cache folder since the index was saved.
        """
        spans = spans_of(index, self.list_names()[0][0])
        return all(Path(spans.path(n)).is_file() for n in range(len(spans.files)))

    def explain_empty(self) -> str:
        """Return what the user should do if no shard has a sample, for the error message."""
        return "the files hold no records: set data.shards"


def array_spec(
    dtype: str, shape: Sequence[int | None], same: bool = True, layout: str | None = None
) -> Spec:
    """Return the spec of an array field.

    Args:
        dtype: NumPy's name of the dtype.
        shape: The shape of the first sample; None for an axis along which samples differ.
        same: Whether every sample has this shape. If not, only the number of axes is fixed.
        layout: A letter for each axis; None for the default.

    Raises:
        DataError: `layout` is for another number of axes.
    """
    layout = default_layout(len(shape)) if layout is None else layout
    if wrong := explain_wrong_layout(layout, len(shape)):
        raise DataError(f"data.fields: {wrong}")
    return Spec.of_array(dtype, tuple(shape) if same else (None,) * len(shape), layout)


def name_shard(path: Path) -> AbstractContextManager[None]:
    """Return a context that turns an OSError or ValueError into a DataError naming the shard."""
    return name_file(path, "write the shard again, or leave it out of data.shards")


def find_files(patterns: str | tuple[str, ...], option: str = "data.shards") -> list[Path]:
    """List the files that match patterns with *, ? and {000..012}.

    Args:
        patterns: One pattern or several.
        option: The option that holds the patterns, for error messages.

    Returns:
        The files, in the order of the patterns; those of one pattern in sorted order.

    Raises:
        DataError: A pattern matches no file, or a file of a numbered pattern is missing.
    """
    return _find(patterns, option)


def find_folders(patterns: str | tuple[str, ...], option: str, ending: str) -> list[Path]:
    """List the folders, and the files with an ending, as `find_files` lists files."""
    return _find(patterns, option, ending)


def _find(patterns: str | tuple[str, ...], option: str, ending: str = "") -> list[Path]:
    every = [patterns] if isinstance(patterns, str) else list(patterns)
    unbraced = [one for pattern in every for one in expand_braces(pattern)]
    matches = [path for pattern in unbraced for path in _find_matches(pattern, option, ending)]
    if len(matches) > MAX_SHARDS:
        raise DataError(
            f"{every[0]}: {len(matches):,} shards are more than gpupipe takes ({MAX_SHARDS:,})"
        )
    return matches


def _find_matches(pattern: str, option: str, ending: str = "") -> list[Path]:
    """List what matches a pattern without braces: files; with `ending`, folders and such files.

    Raises DataError if there is none.
    """

    def is_wanted(path: Path) -> bool:
        if ending and path.is_dir():
            return True
        return path.is_file() and path.name.endswith(ending)

    try:
        path = expand_home(Path(pattern)).absolute()
    except ValueError as e:
        raise DataError(f"{option}: {e}") from e
    if not any(c in pattern for c in "*?["):
        matches = [path] if is_wanted(path) else []
    else:
        matches = sorted(
            p for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if is_wanted(p)
        )
    if not matches and ending:
        is_file = path.is_file()
        what = f"this is a file, and no folder or {ending}" if is_file else "no such folder"
        raise DataError(f"{path}: {what}: put a store there, or set {option}")
    if not matches:
        what = "shard" if option == "data.shards" else "file"
        raise missing_file(path, option, f"put it there, or set {option}", what)
    return matches
