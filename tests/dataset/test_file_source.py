"""Sources whose index is built from files."""

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from gpupipe.dataset.file_source import FileSource
from gpupipe.dataset.index import Index, build
from gpupipe.errors import DataError
from helpers.folders import make_files_old


class Lines(FileSource):
    """The lines of text files are the names of samples."""

    name: ClassVar[str] = "lines"
    not_indexed: ClassVar[frozenset[str]] = FileSource.not_indexed | {"speed"}

    root: Path
    speed: int = 1
    upper: bool = False

    def list_files(self) -> list[Path]:
        if not self.root.is_dir():
            raise DataError(f"{self.root}: set data.root")
        return sorted(self.root.glob("*.txt"))

    def read(self, path: Path) -> list[str]:
        return path.read_text().splitlines()

    def join(self, files: list[Path], parts: list[list[str]]) -> Index:
        names = [name.upper() if self.upper else name for part in parts for name in part]
        return build(str(self.root), names, np.zeros(len(names), np.int64), ["0"])


def test_an_index_of_files_is_read_again_if_a_file_or_an_option_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_files_old(monkeypatch)
    root = tmp_path / "lists"
    root.mkdir()
    for name, text in (("b", "2\n3"), ("a", "1")):
        (root / f"{name}.txt").write_text(text)
    index = Lines(root=root).index()
    assert [index.names[n] for n in range(len(index))] == ["1", "2", "3"]
    with monkeypatch.context() as patch:
        patch.setattr(Lines, "read", lambda *_: pytest.fail("read again"))
        assert Lines(root=root, speed=2, masks=("image",)).index().fingerprint == index.fingerprint
    (root / "b.txt").write_text("2\nx")
    assert Lines(root=root).index().fingerprint != index.fingerprint
    assert Lines(root=root, upper=True).index().names[2] == "X"


def test_missing_and_unreadable_files_are_errors(tmp_path: Path) -> None:
    assert Lines(root=tmp_path).explain_absence() == ""
    with pytest.raises(DataError, match=r"set data\.root"):
        Lines(root=tmp_path / "none").explain_absence()
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(DataError, match=r"a\.txt: cannot be read: Is a directory"):
        Lines(root=tmp_path).index()
