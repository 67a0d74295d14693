from __future__ import annotations

import re

import pytest

from gpupipe.errors import EngineError
from gpupipe.runtime.compiled_extension import find_extension
from gpupipe.runtime.installation import rebuild_command


@pytest.mark.parametrize(
    ("name", "function"), [("_kernels", "read_files_and_crcs"), ("_jpeg", "prepare")]
)
def test_an_extension_of_an_earlier_version_is_not_used(
    name: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUPIPE_KERNELS", raising=False)
    extension = find_extension(name)  # type: ignore[arg-type]
    if extension is None:
        pytest.skip(f"gpupipe.{name} was not built")
    monkeypatch.delattr(extension, function)
    with pytest.warns(UserWarning, match=f"gpupipe.{name} was built for an earlier gpupipe"):
        assert find_extension(name) is None  # type: ignore[arg-type]
    monkeypatch.setenv("GPUPIPE_KERNELS", "on")
    with pytest.raises(EngineError, match=re.escape(rebuild_command())):
        find_extension(name)  # type: ignore[arg-type]
