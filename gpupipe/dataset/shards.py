"""Data sets in shards, which are large files with many samples each: which shards there are, and
how they are indexed.
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
from gpupipe.dataset.shard_index import ShardFile, joined
from gpupipe.dataset.source import Progress, Source, check_names, quiet
from gpupipe.dataset.spec import Spec, default_layout
from gpupipe.errors import DataError
from gpupipe.formats import Damaged
from gpupipe.runtime.devices import cores
from gpupipe.schema.field_types import WHOLE, expanded

_BRACES = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 1_000_000
T = TypeVar("T")


def _known(dtype: str) -> str:
    try:
        kind = np.dtype(dtype)
    except TypeError:
        kind = np.dtype(object)
    if kind.kind not in "iufb" or kind.name != dtype:
        raise ValueError(
            "a dtype is float16, float32, float64, int8 to int64, uint8 to uint64, or bool"
        )
    return dtype


Dtype = Annotated[str, AfterValidator(_known)]
Shape = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**31), WHOLE], ...], Field(min_length=1, max_length=8)
]


class Sharded(Source):
    """The base of sources whose samples are in shards.

    shards: one pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands for the
    home directory.
    """

    separate_files: ClassVar[bool] = False
    format: ClassVar[int] = 1
    """Part of the cache's key: to be raised when the same shards give another index than before."""

    shards: str | tuple[str, ...] = Field(min_length=1)

    @pydantic.model_validator(mode="after")
    def _names_are_free(self) -> Sharded:
        check_names(*self.delivered())
        return self

    @abstractmethod
    def delivered(self) -> tuple[Sequence[str], Sequence[str]]:
        """The names of the fields and of the values in a batch."""

    def index(self, progress: Progress = quiet) -> Index:
        """The samples of all shards. Raises DataError."""
        files = paths(self.shards)
        every = [*files, *self.beside(files)]
        saved = index_cache.place(self.name, self.format, list(map(str, every)), self.model_dump())
        try:
            return index_cache.cached(
                saved,
                every,
                lambda: joined(files, each(files, self.read, progress), self.nothing()),
                self.holds,
            )
        except OSError as e:
            raise DataError(f"{e.filename or files[0]}: cannot be read: {e.strerror or e}") from e

    def beside(self, files: list[Path]) -> list[Path]:
        """What else the index is made from."""
        return []

    def holds(self, index: Index) -> bool:
        """Whether an index that was made before can be used, where no file changed since."""
        return True

    @abstractmethod
    def read(self, path: Path) -> list[ShardFile]:
        """What a shard says of its samples, in one part or several.

        Raises DataError. Called on several threads.
        """

    def nothing(self) -> str:
        """What to do where no shard has a sample."""
        return "see data.shards"

    def absent(self) -> str:
        paths(self.shards)
        return ""


def array_spec(dtype: str, shape: Sequence[int], same: bool = True) -> Spec:
    """What an array is to the first step. shape: of the first sample. same: every sample has it."""
    return Spec.of_array(
        dtype, tuple(shape) if same else (None,) * len(shape), default_layout(len(shape))
    )


@contextlib.contextmanager
def blamed(path: Path) -> Iterator[None]:
    """What is wrong with a shard, or cannot be read, as a DataError that names it."""
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


def mapped(path: Path) -> NDArray[np.uint8]:
    """A file's bytes, memory-mapped. Raises OSError."""
    return (
        np.memmap(path, np.uint8, "r").view(np.ndarray)
        if path.stat().st_size
        else np.empty(0, np.uint8)
    )


def paths(patterns: str | tuple[str, ...], option: str = "data.shards") -> list[Path]:
    """The files of patterns with *, ?

    and {000..012}, which `option` holds. Raises DataError where there is none, or one of a numbered
    pattern is missing.
    """
    every = [patterns] if isinstance(patterns, str) else list(patterns)
    found = [
        path for pattern in every for one in _unbraced(pattern) for path in _matches(one, option)
    ]
    if len(found) > _MOST_SHARDS:
        raise DataError(
            f"{every[0]}: {len(found):,} shards are more than gpupipe takes ({_MOST_SHARDS:,})"
        )
    return found


def each(files: Sequence[Path], read: Callable[[Path], T], progress: Progress) -> list[T]:
    """What `read` finds in each of the files, on all cores."""
    found = []
    with ThreadPoolExecutor(cores()) as pool:
        try:
            for number, one in enumerate(pool.map(read, files)):
                found.append(one)
                progress("indexing shards", number + 1, len(files))
        except BaseException:
            pool.shutdown(
                cancel_futures=True
            )  # an error, or Ctrl-C, does not wait for all the other shards
            raise
    return found


def _unbraced(pattern: str) -> list[str]:
    """The patterns that {000..012} stands for."""
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
    """The files of a pattern without braces. Raises DataError where there is none."""
    try:
        path = expanded(Path(pattern)).absolute()
    except ValueError as e:
        raise DataError(f"{option}: {e}") from e
    if not any(c in pattern for c in "*?["):
        found = [path] if path.is_file() else []
    else:
        found = sorted(
            p for p in Path(path.anchor).glob(str(path.relative_to(path.anchor))) if p.is_file()
        )
    if not found:
        raise DataError(
            f"{path}: no such {'shard' if option == 'data.shards' else 'file'}: put it "
            f"there, or set {option}"
        )
    return found
