"""The base of the sources numpy and raw: their options, specs and index."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from numpy.typing import NDArray
from pydantic import AfterValidator, Field, PrivateAttr, field_validator, model_validator

from gpupipe.dataset import array_index, class_folders
from gpupipe.dataset.array_index import ArrayFiles, IndexedFile
from gpupipe.dataset.array_specs import Layout, build_array_spec
from gpupipe.dataset.index import Index
from gpupipe.dataset.paths import check_manifest_path, explain_os_error, missing_folder, read_files
from gpupipe.dataset.source import MAX_PIXELS, Progress, Source, ignore_progress
from gpupipe.dataset.spec import Spec
from gpupipe.errors import DataError, counted
from gpupipe.formats.manifest_rows import ManifestColumns
from gpupipe.schema.field_types import expand_home

Patterns = str | tuple[str, ...]


class ArraySource(Source):
    """The base of sources whose samples are arrays.

    Attributes:
        extensions: With `root`: which files are arrays, regardless of case.
        root: The folder that holds one folder per class: ROOT/CLASS/..., at any depth.
        manifest: The list of files, in the format of the source file_list: a .txt, or a table with
            the columns path and label. Its paths are relative to `root` if that is set, else to
            the folder of the manifest.
        label: Name of the manifest's column with labels; null if there are none. With `root`, null
            means that folders are no classes: all files under `root` are read, without labels.
        files: One pattern or several, in place of `root` and `manifest`. A pattern is a path
            with * and ?, and {000..012} for numbers.
        field: Name of the array in a batch.
        layout: One letter for each axis of a sample, such as CHW. By default L, HW, CHW or CDHW,
            by the number of axes.
    """

    extensions: tuple[str, ...] = Field(min_length=1)

    root: Annotated[Path, AfterValidator(expand_home)] | None = None
    manifest: Annotated[Path, AfterValidator(check_manifest_path)] | None = None
    label: str | None = "label"
    files: Patterns | None = Field(default=None, min_length=1)
    field: str = "array"
    layout: Layout | None = None

    _index_of_process: Index | None = PrivateAttr(None)

    @field_validator("max_pixels")
    @classmethod
    def _only_of_image_files(cls, max_pixels: int | None) -> int | None:
        if max_pixels == MAX_PIXELS:  # A dump of this model holds the default: it must load.
            return max_pixels
        raise ValueError(
            "it bounds what the header of an image file may claim, and these samples are "
            "arrays: leave it out"
        )

    @model_validator(mode="after")
    def _says_where_files_are(self) -> "ArraySource":
        if (self.files is None) == (self.root is None and self.manifest is None):
            raise ValueError(
                "write root (a folder for each class), manifest (a list of files) or files "
                "(patterns), and not files beside another"
            )
        if self.has_labels and self.files is None:
            raise ValueError(
                "labels and values go with files: with root, folders are classes, and a "
                "manifest has labels of its own"
            )
        return self

    # --- what a subclass implements

    shard_option: ClassVar[str] = "files"

    @property
    @abstractmethod
    def has_labels(self) -> bool:
        """Whether the user set an option that names files with labels or values."""

    def list_names(self) -> tuple[Sequence[str], Sequence[str]]:
        return (self.field,), ()

    @abstractmethod
    def read(self, path: str) -> IndexedFile:
        """Read the header of a file. Several threads call this at once.

        Raises:
            OSError: The file cannot be read.
            DamagedError: The file is damaged.
            ValueError: gpupipe does not support the array in the file.
        """

    def find_companions(self) -> dict[str, ArrayFiles]:
        """Return the files that hold labels and values; by default none.

        Returns:
            Maps each option that names such files, "labels" or "values.NAME", to the files.

        Raises:
            DataError: No file matches an option.
        """
        return {}

    def read_companion(self, option: str, files: ArrayFiles) -> NDArray[Any]:
        """Read the labels or values in the files of one option.

        Args:
            option: "labels" or "values.NAME".
            files: The files that `find_companions` returned for this option.

        Returns:
            The numbers of all N samples, (N,) or (N, n).

        Raises:
            DataError: The files do not hold such numbers.
        """
        raise NotImplementedError

    # --- Source

    @property
    def is_labelled(self) -> bool:
        return getattr(self, "labels", None) is not None

    def index_file(self, path: Path) -> Index:
        """List the samples of one file. Labels and values are arrays of the same file."""
        files = ArrayFiles(path.parent, [path.name])
        beside = dict.fromkeys(self.name_companions(), files)
        self._index_of_process = self._index(files, beside, ignore_progress)
        return self._index_of_process

    def name_companions(self) -> list[str]:
        """Return the options that name files with labels and values: keys of `find_companions`."""
        return []

    def specs(self) -> dict[str, Spec]:
        """Return the spec of the array field, by the field's name.

        Raises:
            DataError: The arrays cannot be read, or have another number of axes than `layout`.
        """
        index = self.index() if self._index_of_process is None else self._index_of_process
        pairs = bool(index.extra["pairs"])
        return {self.field: build_array_spec(index, self.field, self.layout, pairs)}

    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the samples, in the order of their files.

        Raises:
            DataError: A file is missing, cannot be read or does not fit the others.
        """
        files, beside = self._files(progress), self.find_companions()
        every = [path for some_files in (files, *beside.values()) for path in some_files.paths]
        build, root = (lambda: self._index(files, beside, progress)), str(files.root)
        self._index_of_process = self.load_or_build(every, build, root, self._index_of_process)
        return self._index_of_process

    def _files(self, progress: Progress) -> ArrayFiles:
        if self.files is not None:
            return array_index.find_matching(self.files, "data.files")
        if self.manifest is not None:
            return self._files_of_manifest(self.manifest, progress)
        assert self.root is not None
        if not self.root.is_dir():
            raise missing_folder(self.root, "data.root", "put the data there, or set data.root")
        root, has_labels = self.root.resolve(), self.label is not None
        scanned = class_folders.scan(root, self.extensions, "array", progress, has_labels)
        return ArrayFiles(root, scanned.paths, scanned.labels, scanned.classes)

    def _files_of_manifest(self, manifest: Path, progress: Progress) -> ArrayFiles:
        wanted = ManifestColumns({self.field: "path"}, self.label, is_label_required=False)
        try:
            files = read_files(manifest, self.root, wanted, progress)
        except OSError as e:
            reason = explain_os_error(e, "set data.manifest to the list of the samples")
            raise DataError(f"{manifest}: {reason}") from e
        return ArrayFiles(files.root, files.paths[self.field], files.labels, files.classes)

    def _index(self, files: ArrayFiles, beside: dict[str, ArrayFiles], progress: Progress) -> Index:
        parts = array_index.read_headers(files, self.read, progress)
        total = sum(1 if part.count is None else part.count for part in parts)
        labels, values = None, {}
        for option, others in beside.items():
            rows = self.read_companion(option, others)
            if option == "labels":
                rows = labels = array_index.check_labels(others.paths, rows)
            else:
                values[option.removeprefix("values.")] = rows
            if len(rows) != total:
                raise DataError(
                    f"data.{option}: {len(rows):,} rows in its files for "
                    f"{counted(total, 'sample')}: there should be one a sample, in their order"
                )
        return array_index.build_index(files, parts, self.field, labels, values)
