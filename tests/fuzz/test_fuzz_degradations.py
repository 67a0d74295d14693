"""Some hundred images for noise, elastic transforms and the JPEG codec; fuzz_degradations.py tries
more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers import forked_python
from helpers.full_product import IS_FULL

COUNT = int(os.environ.get("GPUPIPE_FUZZ_DEGRADATIONS", "4000" if IS_FULL else "400"))
LIMIT = 600


def test_the_extensions_make_the_pixels_of_the_references() -> None:
    for name in ("gpupipe._kernels", "gpupipe._jpeg"):
        pytest.importorskip(name, reason="the extension is not built")
    script = Path(__file__).with_name("fuzz_degradations.py")
    done = forked_python.run([script, "--count", COUNT], timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert f"{COUNT:,} cases" in done.stdout
