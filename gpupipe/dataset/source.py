"""The contract Source, and SOURCES, which finds sources by name.

A source lists the samples of a data set and the byte ranges of their fields, as an Index.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import RawIOBase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

import pydantic
from pydantic import Field

from gpupipe.dataset import index_cache
from gpupipe.dataset.columns import Rows
from gpupipe.dataset.index import Index
from gpupipe.dataset.paths import explain_os_error
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError
from gpupipe.runtime.progress import Progress as Progress  # noqa: PLC0414  # plugins use it
from gpupipe.runtime.progress import ignore_progress as ignore_progress  # noqa: PLC0414
from gpupipe.runtime.registry import Registry
from gpupipe.schema.field_types import WHOLE, Bytes

MAX_PIXELS = 178_956_970
"""Pillow's limit, above which it warns that an image may be a decompression bomb."""
RESERVED_NAMES = ("label", "id")
"""Names in a batch that no field and no value may have."""
_MIN_CACHE_BYTES = 1_000_000
_BYTES_PER_PIXEL = 3
"""An RGB image that is not compressed has so many. Hardly any image file is larger."""


class FilePart(NamedTuple):
    """Consecutive samples of a file, as a file of their own.

    Attributes:
        samples: How many.
        group: The number of the first of the file's groups of samples that it has.
        ranges: Ranges [begin, end) of the bytes of the file that it has, in any order.
        shift: How many bytes nearer to the beginning they are in the part.
        own: Bytes of its own, with their places in the part.
        beside: About how many bytes `index_part` will write to a file beside it.
    """

    samples: int
    group: int
    ranges: Sequence[tuple[int, int]]
    shift: int
    own: Sequence[tuple[int, bytes]]
    beside: int


class DecodedCacheOptions(pydantic.BaseModel):
    """The settings of the decoded cache.

    Attributes:
        where: memory: a file in /dev/shm, which all processes of the machine share; disk: a file in
            gpupipe's cache folder ($GPUPIPE_CACHE, by default ~/.cache/gpupipe).
        max_bytes: The most that the cache may take, such as 8GB. At least 1 MB. A cache that is
            full keeps an equal share of every epoch, and the rest is decoded.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    where: Literal["memory", "disk"]
    max_bytes: Bytes

    @pydantic.model_validator(mode="after")
    def _check_max_bytes(self) -> "DecodedCacheOptions":
        if self.max_bytes < _MIN_CACHE_BYTES:
            raise ValueError(f"max_bytes is {int(self.max_bytes):,}, but should be at least 1MB")
        return self


class Source(pydantic.BaseModel):
    """The base of all sources, a frozen model of the keys under `data:` in the YAML.

    `data.source` names the source. A source NAME is a class in `gpupipe/sources/NAME.py`, or an
    entry point of a plugin.

    Attributes:
        name: The name of the source in the YAML.
        separate_files: Whether each image is a file of its own, not a part of a larger file.
        inflates: Whether image files are compressed in a container, so that `max_bytes` counts.
        format: Part of the saved index's key. Raise it when the same data yield another index.
        delivers_labels: Whether a field may be called label: a label that is read with the sample.
        not_indexed: Options on which the saved index does not depend.
        column_types: The classes that columns of the saved index may have, dataclasses of arrays.
        shard_option: The option that names the files, if `index_file` is implemented.
        masks: Fields of the kind mask, whose numbers are classes, such as segmentation masks.
            Steps resample them with the nearest pixel, and fill them with 0, or with what `fill`
            has under `mask`.
        max_pixels: Image files of more pixels are broken samples. The header is checked before
            anything is decoded. null means no limit; the default is Pillow's limit.
        max_bytes: Image files of more bytes are broken samples, in containers that compress them:
            ZIP and Parquet. What the container declares is checked before anything is inflated, and
            the result after that. null, the default: 3 bytes for each of `max_pixels`.
        cache_decoded: Where to keep decoded images, such as {where: memory, max_bytes: 8GB}. The
            cache holds the output of `decode`, and of the steps right after it that draw nothing.
            null, the default: decode in every epoch.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    separate_files: ClassVar[bool] = True
    inflates: ClassVar[bool] = False
    format: ClassVar[int] = 1
    delivers_labels: ClassVar[bool] = False
    not_indexed: ClassVar[frozenset[str]] = frozenset(
        {"masks", "max_pixels", "max_bytes", "cache_decoded"}
    )
    column_types: ClassVar[index_cache.Columns] = index_cache.BASIC_COLUMNS
    shard_option: ClassVar[str] = "shards"

    masks: tuple[str, ...] = ()
    max_pixels: Annotated[int, Field(ge=1), WHOLE] | None = MAX_PIXELS
    max_bytes: Bytes | None = None
    cache_decoded: DecodedCacheOptions | None = None

    @property
    def byte_limit(self) -> int:
        """The maximum size of an inflated image file in bytes; 0 for no limit."""
        if self.max_bytes is not None:
            return int(self.max_bytes)
        return _BYTES_PER_PIXEL * self.max_pixels if self.max_pixels else 0

    @abstractmethod
    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the samples: return the saved index if it is still valid, else scan the data.

        May download the data first.

        Args:
            progress: Called as the scan proceeds.

        Raises:
            DataError: There are no samples, or the data cannot be read.
            FetchError: The download failed.
        """

    def index_file(self, path: Path) -> Index:
        """List the samples of one file, and save nothing.

        The source `remote` calls this for each shard that it has fetched, in a process of its own;
        see FORMATS in `gpupipe/cache/stored_formats.py`. All columns are ChunkColumns of `path`, or
        SpanColumns: of `path`, or of the file beside it with the ending .parts, which this method
        writes if the samples cannot be read in place. The same bytes must always give the same
        index. Child processes may stay for the next file, until `end_children`.

        Raises:
            NoSamplesError: The file has no samples.
            DataError: The file cannot be read.
        """
        raise NotImplementedError

    def end_children(self) -> None:
        """End the child processes that `index_file` has left; by default there are none."""

    def cut_file(self, file: RawIOBase, max_bytes: float) -> list[FilePart]:
        """Return the parts that a file can be fetched in, in the order of its samples.

        It is called if the format of the file has `is_cut`, see FORMATS.

        Args:
            file: The file in the store. What is read of it is fetched at once, so only its end may
                be read, such as a footer.
            max_bytes: The most that a part with several groups of samples may take, with what is
                written beside it.

        Returns:
            The parts; none if the file has no samples.

        Raises:
            ValueError: The file is damaged, or lacks what an option names.
        """
        raise NotImplementedError

    def index_part(self, path: Path, first: int, group: int) -> Index:
        """List the samples of a part of a file as `index_file` does.

        Args:
            path: The part, which is a file of its own.
            first: The number of its first sample in the whole file.
            group: The number of its first group of samples in the whole file.

        Raises:
            NoSamplesError: The part has no samples.
            DataError: The part cannot be read.
        """
        raise NotImplementedError

    @property
    def is_labelled(self) -> bool:
        """Whether the samples that `index_file` lists have a class each."""
        return getattr(self, "label", None) is not None

    def specs(self) -> dict[str, Spec]:
        """Return the spec of each field of this source, by the field's name.

        By default each field holds encoded image files. Steps work on the first field.

        Raises:
            DataError: The specs depend on data that cannot be read.
        """
        return {name: Spec() for name in self.list_names()[0]}

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        """Return the names of the fields, and the names of the values.

        By default there is one field, "image", and no value.
        """
        return ("image",), ()

    def annotation_specs(self) -> dict[str, Spec]:
        """Return the spec of each field of annotations, by the field's name; by default, none.

        The index has an AnnotationColumn of the same name for each. Batches deliver them as Ragged.

        Raises:
            DataError: The specs depend on data that cannot be read.
        """
        return {}

    @pydantic.model_validator(mode="after")
    def _names_are_free(self) -> Self:
        fields, values = self.list_names()
        every = [*fields, *values]
        for name in every:
            is_taken = name in RESERVED_NAMES and not (self.delivers_labels and name == "label")
            if is_taken or not name or every.count(name) > 1:
                raise ValueError(
                    f"'{name}' cannot be the name of a field or value: names are not empty, "
                    f"none stands twice, and none is {' or '.join(RESERVED_NAMES)}"
                )
        return self

    def field_specs(self) -> dict[str, Spec]:
        """Return the spec of each field as the first step gets it, by the field's name.

        The fields that the option `masks` names have the kind mask.

        Raises:
            DataError: The specs depend on data that cannot be read.
        """
        specs = self.specs()
        return specs | {
            name: replace(specs[name], kind="mask") for name in self.masks if name in specs
        }

    def list_parts(self) -> "list[Source]":
        """Return the sources whose samples this source has: itself, or its parts."""
        return [self]

    def find_rows_in_list(self) -> Callable[[int], str] | None:
        """Return a function from a row to the FILE:LINE that names its files, for messages.

        None, the default, is for a source that finds its files itself. Files that a list names may
        be missing: `load()` and `gpupipe check` look for them. The function reads the list at its
        first call, and raises DataError if it cannot.
        """
        return None

    def explain_absence(self) -> str:
        """Return why the data is not there yet ("... will be fetched"); "" if it is there."""
        return ""

    def release(self) -> None:
        """End the processes that the source started, if any. A later read starts them again."""

    def is_usable(self, index: Index) -> bool:
        """Return whether a saved index is usable. Called only if no file changed since the save."""
        return True

    def find_available_rows(self, index: Index) -> Rows | None:
        """Return the rows of the index that can be read now; None, the default, if all rows can.

        Commands that need a few samples, but no epoch, call this.

        Raises:
            DataError: No row can be read now.
        """
        return None

    def read_through(self, index: Index) -> Index:
        """Return the index for engines that read the data on other machines; by default `index`.

        The returned index has all samples. Its columns work on every machine, and may cache there
        the samples that they fetch. Engines of this kind do not use the source's Population.
        """
        return index

    def load_or_build(
        self,
        files: Sequence[str | Path],
        build: Callable[[], Index],
        key: Any,
        previous: Index | None = None,
    ) -> Index:
        """Return the saved index if no file has changed, else build it and save it.

        Args:
            files: The files that the index depends on.
            build: Builds the index.
            key: Identifies the index, together with the source's options. Plain JSON and paths.
            previous: The index that this process has built before, if any.

        Raises:
            DataError: A file cannot be read.
        """
        options = self.model_dump(exclude=set(self.not_indexed))
        saved = index_cache.get_path(self.name, self.format, key, options)
        try:
            return index_cache.load_or_build(
                saved, files, build, self.is_usable, previous, self.column_types
            )
        except OSError as e:
            raise DataError(f"{e.filename or files[0]}: {explain_os_error(e)}") from e


SOURCES = Registry("source", "gpupipe.sources", Source)
