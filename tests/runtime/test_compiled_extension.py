from __future__ import annotations

import re

import pytest

from gpupipe.errors import EngineError
from gpupipe.runtime.compiled_extension import find_extension
from gpupipe.runtime.installation import rebuild_command


@pytest.mark.parametrize("name", ["_kernels", "_jpeg"])
@pytest.mark.parametrize("abi", [None, 0, 1 << 30], ids=["none", "earlier", "later"])
def test_an_extension_of_another_version_is_not_used(
    name: str, abi: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUPIPE_KERNELS", raising=False)
    extension = find_extension(name)  # type: ignore[arg-type]
    if extension is None:
        pytest.skip(f"gpupipe.{name} was not built")
    monkeypatch.delattr(extension, "ABI")
    if abi is not None:
        monkeypatch.setattr(extension, "ABI", abi, raising=False)
    with pytest.warns(UserWarning, match=f"gpupipe.{name} was built for another version"):
        assert find_extension(name) is None  # type: ignore[arg-type]
    monkeypatch.setenv("GPUPIPE_KERNELS", "on")
    with pytest.raises(EngineError, match=re.escape(rebuild_command())):
        find_extension(name)  # type: ignore[arg-type]
