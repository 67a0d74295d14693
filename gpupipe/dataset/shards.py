"""The base of sources whose samples are in shards: list the shards and index them.

A shard is a large file with many samples.
"""

from __future__ import annotations

import contextlib
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

import numpy as np
import pydantic
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from gpupipe.dataset import index_cache
from gpupipe.dataset.index import Index
from gpupipe.dataset.missing_paths import missing_file
from gpupipe.dataset.shard_index import ShardFile, join_shards
from gpupipe.dataset.source import Progress, Source, check_names, ignore_progress
from gpupipe.dataset.spec import Spec, default_layout
from gpupipe.errors import DataError
from gpupipe.formats import Damaged
from gpupipe.runtime.devices import cores
from gpupipe.schema.field_types import WHOLE, expand_home

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 1_000_000
T = TypeVar("T")


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


class ShardedSource(Source):
    """The base of sources whose samples are in shards.

    Attributes:
        format: Part of the cache's key. Raise it when the same shards yield another index.
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
    """

    separate_files: ClassVar[bool] = False
    format: ClassVar[int] = 1

    shards: str | tuple[str, ...] = Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _names_are_free(self) -> ShardedSource:
        check_names(*self.list_names())
        return self

    @abstractmethod
    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        """The names of the fields and of the values in a batch."""

    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the samples of all shards.

        Raises:
            DataError: A shard is missing, cannot be read or does not fit the others.
        """
        files = find_files(self.shards)
        every = [*files, *self.find_companions(files)]
        saved = index_cache.get_path(
            self.name, self.format, list(map(str, every)), self.model_dump()
        )
        try:
            return index_cache.load_or_build(
                saved,
                every,
                lambda: join_shards(
                    files, read_each(files, self.read, progress), self.explain_empty()
                ),
                self.is_usable,
            )
        except OSError as e:
            raise DataError(f"{e.filename or files[0]}: cannot be read: {e.strerror or e}") from e

    def find_companions(self, files: list[Path]) -> list[Path]:
        """Further files that the index depends on. A change of one invalidates the saved index."""
        return []

    def is_usable(self, index: Index) -> bool:
        """Whether a saved index is usable, given that no file has changed since it was saved."""
        return True

    @abstractmethod
    def read(self, path: Path) -> list[ShardFile]:
        """Index one shard, in one part or several. Several threads call this at once.

        Raises:
            DataError: The shard cannot be read, or holds something that gpupipe does not take.
        """

    def explain_empty(self) -> str:
        """What to do if no shard has a sample, for the error message."""
        return "see data.shards"

    def explain_absence(self) -> str:
        find_files(self.shards)
        return ""


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


@contextlib.contextmanager
def name_shard(path: Path) -> Iterator[None]:
    """Turn an OSError or ValueError into a DataError that names the shard."""
    try:
        yield
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror or e}") from e
    except ValueError as e:
        advice = (
            "; write the shard again, or leave it out of data.shards"
            if isinstance(e, Damaged)
            else ""
        )
        raise DataError(f"{path}: {e}{advice}") from e


def map_file(path: Path) -> NDArray[np.uint8]:
    """Memory-map a file, uint8 (bytes,).

    Raises:
        OSError: The file cannot be read.
    """
    return (
        np.memmap(path, np.uint8, "r").view(np.ndarray)
        if path.stat().st_size
        else np.empty(0, np.uint8)
    )


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
    if len(matches) > _MOST_SHARDS:
        raise DataError(
            f"{every[0]}: {len(matches):,} shards are more than gpupipe takes ({_MOST_SHARDS:,})"
        )
    return matches


def read_each(files: Sequence[Path], read: Callable[[Path], T], progress: Progress) -> list[T]:
    """Call `read` with each of the files, on all cores, and return the results in order."""
    results = []
    with ThreadPoolExecutor(cores()) as pool:
        try:
            for number, result in enumerate(pool.map(read, files)):
                results.append(result)
                progress("indexing shards", number + 1, len(files))
        except BaseException:
            # An error, or Ctrl-C, must not wait for all the other shards.
            pool.shutdown(cancel_futures=True)
            raise
    return results


def _unbraced(pattern: str) -> list[str]:
    """Expand the braces of a pattern, such as {000..012}."""
    match = _BRACES.search(pattern)
    if match is None:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not 0 <= last - first < _MOST_SHARDS:
        raise DataError(
            f"{pattern}: {match[0]} should count upwards, to at most {_MOST_SHARDS:,} shards"
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
