"""The base of sources whose samples are in shards, large files with many samples each."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
from pydantic import AfterValidator, Field

from gpupipe.dataset import index_cache
from gpupipe.dataset.index import Index, spans_of
from gpupipe.dataset.paths import missing_file, name_file
from gpupipe.dataset.shard_index import ShardFile, join_shards
from gpupipe.dataset.source import FileSource
from gpupipe.dataset.spec import Spec, default_layout
from gpupipe.errors import DataError
from gpupipe.runtime.files import write_atomically
from gpupipe.schema.field_types import WHOLE, expand_home

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MAX_SHARDS = 1_000_000


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


class ShardedSource(FileSource):
    """The base of sources whose samples are in shards.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
    """

    shards: str | tuple[str, ...] = Field(min_length=1)

    def list_files(self) -> list[Path]:
        return find_files(self.shards)

    @abstractmethod
    def read(self, path: Path) -> list[ShardFile]:
        """Index one shard, in one part or several. Several threads call this at once.

        Raises:
            DataError: The shard cannot be read, or holds something that gpupipe does not take.
        """

    def join(self, files: list[Path], parts: list[list[ShardFile]]) -> Index:
        return join_shards(files, parts, self.explain_empty())

    def is_usable(self, index: Index) -> bool:
        """Whether the files are there that hold the bytes: some are in the cache folder."""
        spans = spans_of(index, self.list_names()[0][0])
        return all(Path(spans.path(n)).is_file() for n in range(len(spans.files)))

    def explain_empty(self) -> str:
        """What to do if no shard has a sample, for the error message."""
        return "see data.shards"


def array_spec(dtype: str, shape: Sequence[int], same: bool = True) -> Spec:
    """Return the spec of an array field.

    Args:
        dtype: NumPy's name of the dtype.
        shape: The shape of the first sample.
        same: Whether every sample has this shape. If not, only the number of axes is fixed.
    """
    return Spec.of_array(
        dtype, tuple(shape) if same else (None,) * len(shape), default_layout(len(shape))
    )


@contextmanager
def write_parts(path: Path, key: Sequence[Any], reason: str) -> Iterator[tuple[Path, BinaryIO]]:
    """Yield the path of a new file in the cache folder, and the open file.

    It holds the samples of a shard that cannot be read in place.

    Args:
        path: The shard.
        key: What the file depends on, beside the state of the shard. Plain JSON.
        reason: What is written there, for the error message.

    Raises:
        DataError: The file cannot be written.
    """
    target = index_cache.get_path(
        key[0], str(path), index_cache.file_state(path), *key[1:]
    ).with_suffix(".parts")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with write_atomically(target) as temporary, temporary.open("wb") as file:
            yield target, file
    except OSError as e:
        raise DataError(
            f"{target}: cannot be written ({e.strerror or e}): {reason}: set GPUPIPE_CACHE to a "
            "folder that can"
        ) from e


def name_shard(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError or ValueError into a DataError that names the shard."""
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
    every = [patterns] if isinstance(patterns, str) else list(patterns)
    matches = [
        path
        for pattern in every
        for unbraced in _unbraced(pattern)
        for path in _matches(unbraced, option)
    ]
    if len(matches) > _MAX_SHARDS:
        raise DataError(
            f"{every[0]}: {len(matches):,} shards are more than gpupipe takes ({_MAX_SHARDS:,})"
        )
    return matches


def _unbraced(pattern: str) -> list[str]:
    """Expand the braces of a pattern, such as {000..012}."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MAX_SHARDS:
        raise DataError(
            f"{pattern}: {match[0]} should count upwards, to at most {_MAX_SHARDS:,} shards"
        )
    width = len(match[1]) if match[1].startswith("0") else 0
    return [
        one
        for n in range(first, last + 1)
        for one in _unbraced(f"{pattern[: match.start()]}{n:0{width}}{pattern[match.end() :]}")
    ]


def _matches(pattern: str, option: str) -> list[Path]:
    """List the files that match a pattern without braces. Raises DataError if there is none."""
    try:
        path = expand_home(Path(pattern)).absolute()
    except ValueError as e:
        raise DataError(f"{option}: {e}") from e
    if not any(c in pattern for c in "*?["):
        matches = [path] if path.is_file() else []
    else:
        matches = sorted(
            p for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if p.is_file()
        )
    if not matches:
        what = "shard" if option == "data.shards" else "file"
        raise missing_file(path, option, f"put it there, or set {option}", what)
    return matches
