"""Some hundred images for the colours of the extension; fuzz_colors.py tries more."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import forked_python
from helpers.full_product import IS_FULL

COUNT = 2000 if IS_FULL else 200
LIMIT = 600


def test_no_change_of_colours_does_harm() -> None:
    pytest.importorskip("gpupipe._kernels", reason="the extension is not built")
    script = Path(__file__).with_name("fuzz_colors.py")
    done = forked_python.run([script, "--count", COUNT], timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f'"images": {COUNT}' in done.stdout
