"""zip: images in ZIP archives, in one folder per class."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from gpupipe.dataset.class_folders import IMAGE_EXTENSIONS, get_suffixes
from gpupipe.dataset.columns import Column, Rows, StringArray
from gpupipe.dataset.file_columns import SpanColumn
from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index, build
from gpupipe.dataset.labels import make_unlabelled
from gpupipe.dataset.reading import map_file, read_rows_in_parallel
from gpupipe.dataset.shards import find_files, name_shard
from gpupipe.errors import DataError, counted
from gpupipe.formats import check_size, zip_directory
from gpupipe.formats.zip_directory import ZipMember

_IMAGE = "image"
_OF_MACOS = "__MACOSX"


@dataclass(frozen=True)
class ZipColumn(Column):
    """A field whose samples are members of ZIP archives, some of them deflated.

    Attributes:
        spans: The byte ranges of the N rows in the archives, deflated or not.
        size: The size of each row in bytes after inflating, int64 (N,).
        crc: The CRC-32 of each row after inflating, int64 (N,).
        is_deflated: Whether each row is deflated, bool (N,).
        max_bytes: The maximum of `size` that is read; 0 for no limit.
    """

    spans: SpanColumn
    size: NDArray[np.int64]
    crc: NDArray[np.int64]
    is_deflated: NDArray[np.bool_]
    max_bytes: int

    def __len__(self) -> int:
        return len(self.size)

    def read(self, rows: Rows) -> list[NDArray[np.uint8]]:
        for size in self.size[rows].tolist():
            check_size(size, self.max_bytes)
        stored = self.spans.read(rows)
        if not self.is_deflated[rows].any():
            return stored

        def open_member(n: int) -> NDArray[np.uint8]:
            row, content = rows[n], stored[n]
            if self.is_deflated[row]:
                content = zip_directory.inflate(content, int(self.size[row]))
                zip_directory.check_crc(content, int(self.crc[row]))
            return content

        return read_rows_in_parallel(open_member, range(len(rows)))

    def location(self, row: int, name: str) -> str:
        return self.spans.location(row, name)

    def fingerprint_parts(self, names: StringArray) -> list[NDArray[Any]]:
        return [*self.spans.fingerprint_parts(names), self.size, self.crc, self.is_deflated]

    def get_sizes(self, rows: Rows) -> list[int | None]:
        return list(self.size[rows].tolist())

    def take(self, rows: Rows) -> "ZipColumn":
        return ZipColumn(
            self.spans.take(rows),
            self.size[rows],
            self.crc[rows],
            self.is_deflated[rows],
            self.max_bytes,
        )


class _Image(NamedTuple):
    """An image in an archive.

    Attributes:
        path: Its path, relative to `Zip.folder`.
        member: Its entry in the archive's directory.
        begin: The byte offset of its stored content.
    """

    path: str
    member: ZipMember
    begin: int


class Zip(FileSource):
    """Images in ZIP archives, in class folders (CLASS/...), at any depth, in ImageFolder's order.

    An uncompressed member is read where it is. A deflated member is inflated at each read, and its
    CRC-32 is checked. Hidden files are left out, and so is the folder __MACOSX.

    Attributes:
        shards: One pattern or several: paths with * and ?, and {000..012} for numbers. ~ stands
            for the home directory.
        folder: The folder inside the archives that holds the class folders, such as "data/train".
        label: "folder": the first folder below `folder` is the class. null: there are no labels.
        extensions: The file name extensions of images, in upper or lower case.
        verify: Whether to check the CRC-32 of every image when the archives are indexed.
    """

    name: ClassVar[str] = "zip"
    inflates: ClassVar[bool] = True
    format: ClassVar[int] = 2
    not_indexed: ClassVar[frozenset[str]] = FileSource.not_indexed - {"max_bytes", "max_pixels"}
    column_types: ClassVar[tuple[type[Column], ...]] = (*FileSource.column_types, ZipColumn)

    shards: str | tuple[str, ...] = Field(min_length=1)
    folder: str = ""
    label: Literal["folder"] | None = "folder"
    extensions: tuple[str, ...] = Field(default=IMAGE_EXTENSIONS, min_length=1)
    verify: bool = False

    def list_files(self) -> list[Path]:
        return find_files(self.shards)

    def join(self, files: list[Path], archives: list[list[_Image]]) -> Index:
        every = [
            (self._find_class(image, files[file]), *image.path.rpartition("/")[::2], file, image)
            for file, images in enumerate(archives)
            for image in images
        ]
        if not every:
            where = f" under {self.folder}" if self.folder else ""
            raise DataError(
                f"{files[0]}: no image ({', '.join(self.extensions)}) in "
                f"{counted(len(files), 'archive')}{where}: set data.folder or data.extensions"
            )
        every.sort(key=lambda entry: entry[:-1])
        names, _, _, file_of, images = zip(*every, strict=True)
        members = [image.member for image in images]
        root = os.path.commonpath([path.parent for path in files])
        spans = SpanColumn(
            root,
            StringArray.from_strings(str(path.relative_to(root)) for path in files),
            np.array(file_of, np.int32),
            np.array([image.begin for image in images], np.int64),
            np.array([member.stored_size for member in members], np.int64),
        )
        column: Column = spans
        if any(member.is_deflated for member in members):
            column = ZipColumn(
                spans,
                np.array([member.size for member in members], np.int64),
                np.array([member.crc for member in members], np.int64),
                np.array([member.is_deflated for member in members], bool),
                self.byte_limit,
            )
        numbers, classes = make_unlabelled(len(every))
        if self.label:
            classes = sorted(set(names))
            number_of = {name: number for number, name in enumerate(classes)}
            numbers = np.array([number_of[name] for name in names], np.int64)
        paths = [member.name for member in members]
        return build(root, paths, numbers, classes, columns={_IMAGE: column})

    def _find_class(self, image: _Image, file: Path) -> str:
        """Return the class of an image; "" if there are no labels."""
        if not self.label:
            return ""
        name, slash, _ = image.path.partition("/")
        if not slash:
            raise DataError(
                f"{file}: {image.member.name} is in no class folder: set data.folder, or "
                "data.label to null if there are no labels"
            )
        return name

    def read(self, path: Path) -> list[_Image]:
        """List the images of one archive, with the byte offset of each."""
        images, prefix, suffixes = [], _make_prefix(self.folder), get_suffixes(self.extensions)
        with name_shard(path):
            data = map_file(path)
            for member in zip_directory.iter_members(data):
                zip_directory.check_name(data, member)
                inner = member.name.removeprefix(prefix)
                is_inside = member.name.startswith(prefix) and _is_visible(inner)
                if is_inside and inner.lower().endswith(suffixes):
                    images.append(_Image(inner, member, zip_directory.locate(data, member)))
                    is_read = not self.byte_limit or member.size <= self.byte_limit
                    if self.verify and is_read:
                        zip_directory.verify(data, member, images[-1].begin)
        return images


def _make_prefix(folder: str) -> str:
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    return "".join(f"{part}/" for part in parts)


def _is_visible(path: str) -> bool:
    return not any(part.startswith(".") or part == _OF_MACOS for part in path.split("/"))
