"""What the sources numpy and raw share: the options, the fields, and how an index is kept."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from gpupipe.dataset import array_files
from gpupipe.dataset.array_files import ArrayFiles, FilePart
from gpupipe.dataset.index import Index
from gpupipe.dataset.manifest_paths import listing
from gpupipe.dataset.source import MAX_PIXELS, Progress, Source, check_names, quiet
from gpupipe.dataset.spec import PAIR, Spec, default_layout, wrong_layout
from gpupipe.errors import DataError
from gpupipe.schema.field_types import expanded

Patterns = str | tuple[str, ...]


def _layout(layout: str) -> str:
    if wrong := wrong_layout(layout):
        raise ValueError(wrong)
    if PAIR in layout and not layout.endswith(PAIR):
        raise ValueError(
            f"layout is {layout!r}, but {PAIR}, the real and the imaginary part, should be "
            "its last axis"
        )
    return layout


class ArraySource(Source):
    """The base of the sources whose samples are arrays.

    root: a folder with a folder for each class: ROOT/CLASS/..., at any depth. manifest: a list of
    files, as the source file_list has it: .txt, or a table with the columns path and label; its
    paths are relative to
      root, or to its folder.
    label: with a manifest: the name of the column with labels; null: none. files: in place of both,
    one pattern or several: paths with * and ?, and {000..012} for numbers. field: what the array is
    called in a batch. layout: a letter for each axis of a sample, such as CHW; by default L, HW,
    CHW or CDHW, by the number of axes.
    """

    format: ClassVar[int] = 1
    """Part of the cache's key: to be raised when the same files give another index than before."""
    extensions: tuple[str, ...] = Field(min_length=1)

    root: Annotated[Path, AfterValidator(expanded)] | None = None
    manifest: Annotated[Path, AfterValidator(listing)] | None = None
    label: str | None = "label"
    files: Patterns | None = Field(default=None, min_length=1)
    field: str = "array"
    layout: Annotated[str, AfterValidator(_layout)] | None = None

    _made: Index | None = PrivateAttr(None)

    @field_validator("max_pixels")
    @classmethod
    def _only_of_image_files(cls, max_pixels: int | None) -> int | None:
        if max_pixels == MAX_PIXELS:  # as others take it, so that a dump of this model is one
            return max_pixels
        raise ValueError(
            "it bounds what the header of an image file may claim, and these samples are "
            "arrays: leave it out"
        )

    @model_validator(mode="after")
    def _says_where_files_are(self) -> ArraySource:
        check_names([self.field], self.named_values())
        if (self.files is None) == (self.root is None and self.manifest is None):
            raise ValueError(
                "write root (a folder for each class), manifest (a list of files) or files "
                "(patterns), and not files beside another"
            )
        if self.labelled and self.files is None:
            raise ValueError(
                "labels and values go with files: with root, folders are classes, and a "
                "manifest has labels of its own"
            )
        return self

    # --- what a source says of itself

    @property
    @abstractmethod
    def labelled(self) -> bool:
        """Whether files with labels are named."""

    def named_values(self) -> tuple[str, ...]:
        """What is delivered beside the array."""
        return ()

    @abstractmethod
    def read(self, path: str) -> FilePart:
        """What a file holds. Raises OSError, ValueError, Damaged. Called on several threads."""

    def beside(self) -> dict[str, ArrayFiles]:
        """The files with labels and values, by option. Raises DataError."""
        return {}

    @abstractmethod
    def read_labels(self, files: ArrayFiles) -> NDArray[np.int64]:
        """Raises DataError."""

    def read_values(self, option: str, files: ArrayFiles) -> NDArray[Any]:
        """Of a source that has named values. Raises DataError."""
        raise NotImplementedError  # by default there are none

    # --- what it makes of that

    def specs(self) -> dict[str, Spec]:
        """Raises DataError where the arrays cannot be read, or have other axes than `layout`."""
        index = self.index() if self._made is None else self._made
        array = index.columns[self.field].array
        assert array is not None
        shape = array.shape if array.shapes is None else _shared(array.shapes)
        assert shape is not None
        pairs = bool(index.extra["pairs"])
        layout = (
            default_layout(len(shape) - pairs)
            if self.layout is None
            else self.layout.removesuffix(PAIR if pairs else "")
        )
        try:
            return {self.field: Spec.of_array(array.dtype, shape, layout + PAIR * pairs)}
        except ValueError as e:
            raise DataError(
                f"data.layout: {e} "
                f"({', '.join('?' if n is None else str(n) for n in shape)}), as in "
                f"{index.path(0)}"
            ) from e

    def index(self, progress: Progress = quiet) -> Index:
        """The samples, in the order of their files. Raises DataError."""
        files, beside = self._files(progress), self.beside()
        key = [self.name, self.format, str(files.root), self.model_dump()]
        every = [path for found in (files, *beside.values()) for path in found.paths]
        self._made = array_files.cached(
            key, every, lambda: self._index(files, beside, progress), self._made
        )
        return self._made

    def _files(self, progress: Progress) -> ArrayFiles:
        if self.files is not None:
            return array_files.matching(self.files, "data.files")
        if self.manifest is not None:
            return array_files.in_list(self.manifest, self.root, self.field, self.label, progress)
        assert self.root is not None
        return array_files.in_classes(self.root, self.extensions, progress)

    def _index(self, files: ArrayFiles, beside: dict[str, ArrayFiles], progress: Progress) -> Index:
        parts = array_files.read_all(files, self.read, progress)
        total = sum(1 if part.count is None else part.count for part in parts)
        numbers, values = None, {}
        for option, others in beside.items():
            found = (
                self.read_labels(others) if option == "labels" else self.read_values(option, others)
            )
            array_files.check_count(f"data.{option}", found, total)
            if option == "labels":
                numbers = found
            else:
                values[option.removeprefix("values.")] = found
        return array_files.indexed(files, parts, self.field, numbers, values)


def _shared(shapes: NDArray[np.int64]) -> tuple[int | None, ...]:
    """The length of each axis, None where it differs."""
    same = (shapes == shapes[0]).all(0)
    return tuple(int(n) if equal else None for n, equal in zip(shapes[0], same, strict=True))
