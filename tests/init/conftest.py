"""The working directory of the tests of `gpupipe init`: empty but for the folder `set`."""

from pathlib import Path

import pytest


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of data that a test fills, which is `set` in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = Path("set")
    folder.mkdir()
    return folder
