"""Where gpupipe keeps what it can create again."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.runtime.cache_dir import cache_dir


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"GPUPIPE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"GPUPIPE_CACHE": "~/a"}, "/home/me/a"),
        ({"GPUPIPE_CACHE": "", "XDG_CACHE_HOME": "/b"}, "/b/gpupipe"),
        ({"XDG_CACHE_HOME": ""}, "/home/me/.cache/gpupipe"),
        ({}, "/home/me/.cache/gpupipe"),
    ],
    ids=str,
)
def test_the_folder(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], folder: str
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for name in ("GPUPIPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_dir() == Path(folder)
