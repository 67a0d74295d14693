from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gpupipe.runtime.cache_dir import cache_dir
from gpupipe.runtime.home_dir import expand_user

OWN = Path(pwd.getpwuid(os.getuid()).pw_dir)


def test_an_empty_home_is_no_root_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    for name in ("GPUPIPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert cache_dir() == OWN / ".cache" / "gpupipe"
    assert expand_user("~") == OWN
    assert expand_user("~/x") == OWN / "x"


@pytest.mark.parametrize(
    ("path", "expanded"),
    [
        ("~/x", "/home/me/x"),
        ("~", "/home/me"),
        ("x/~", "x/~"),
        ("~no-such-user/x", "~no-such-user/x"),
    ],
)
def test_home(monkeypatch: pytest.MonkeyPatch, path: str, expanded: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert expand_user(path) == Path(expanded)
