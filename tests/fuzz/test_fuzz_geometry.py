"""Some hundred images for the geometry of the extension; fuzz_geometry.py tries more."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import forked_python
from helpers.full_product import IS_FULL

COUNT = 5000 if IS_FULL else 400
LIMIT = 600


def test_no_geometry_does_harm() -> None:
    pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
    script = Path(__file__).with_name("fuzz_geometry.py")
    done = forked_python.run([script, "--count", COUNT], timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f'"images": {COUNT}' in done.stdout
