"""Packages that only some commands need."""

from __future__ import annotations

import pytest

from gpupipe.errors import DataError, GpupipeError
from gpupipe.runtime.extras import require_extra
from gpupipe.runtime.installation import install_command


def test_what_is_installed_is_no_error() -> None:
    require_extra("fetch", ("json", "os.path"), "a download")


def test_what_is_missing_is_named_with_what_to_run() -> None:
    with pytest.raises(GpupipeError) as raised:
        require_extra("fetch", ("json", "no_such_module"), "a download")
    assert str(raised.value) == (
        f"a download needs no_such_module, which is not installed: run {install_command('fetch')}"
    )
    with pytest.raises(DataError, match=r"needs no_such\.inner and no_such_module, which are not"):
        require_extra("fetch", ("no_such.inner", "no_such_module"), "a download", DataError)
