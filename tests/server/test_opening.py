from __future__ import annotations

from pathlib import Path

import pytest

from gpupipe.protocol import keys
from gpupipe.server.opening import AllowedKeys


def test_each_refused_key_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pairs = {name: keys.new(tmp_path / name, name) for name in ("known", "a", "b")}
    public = {name: keys.load(pair[0], False)[0] for name, pair in pairs.items()}
    allowed = AllowedKeys(str(tmp_path / "known"))
    assert allowed.callback("gpupipe", public["known"])
    for name in ("a", "b", "a", "a"):
        assert not allowed.callback("gpupipe", public[name])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert public["a"].decode() in told[0]
    assert public["b"].decode() in told[1]
