"""FileSource: the base of sources whose index is built from files."""

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from gpupipe.dataset.index import Index
from gpupipe.dataset.reading import read_each
from gpupipe.dataset.source import Progress, Source, ignore_progress


class FileSource(Source):
    """The base of sources whose index is built from files.

    A subclass defines `list_files`, `read` and `join`. The base reads the files on all cores, saves
    the index in the cache folder, and says what is missing.
    """

    separate_files: ClassVar[bool] = False

    @abstractmethod
    def list_files(self) -> list[Path]:
        """List the files to read, in the order of the index.

        Raises:
            DataError: There is none, or one is missing.
        """

    def find_companions(self, files: list[Path]) -> list[Path]:
        """Return further files; the index is built again if one of them changes."""
        return []

    def read(self, path: Path) -> Any:
        """Read one file and return its content for `join`. Several threads call this at once.

        Raises:
            DataError: The file cannot be read, or holds data that gpupipe does not support.
        """
        raise NotImplementedError

    def join(self, files: list[Path], parts: list[Any]) -> Index:
        """Build the index of all files.

        Args:
            files: The files.
            parts: The result of `read` for each file.

        Raises:
            DataError: There is no sample, or the files do not fit each other.
        """
        raise NotImplementedError

    def build(self, files: list[Path], progress: Progress) -> Index:
        """Return the index: call `read` for each file, then `join`.

        A source of a single file may override this.

        Raises:
            DataError: `read` or `join` raised it.
        """
        return self.join(files, read_each(files, self.read, progress))

    def index_file(self, path: Path) -> Index:
        return self.build([path], ignore_progress)

    def index(self, progress: Progress = ignore_progress) -> Index:
        """List the samples of all files.

        Raises:
            DataError: A file is missing, cannot be read or does not fit the others.
        """
        files = self.list_files()
        every = [*files, *self.find_companions(files)]
        return self.load_or_build(every, lambda: self.build(files, progress), list(map(str, every)))

    def explain_absence(self) -> str:
        self.list_files()
        return ""
