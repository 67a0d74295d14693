"""Some hundred damaged JPEGs for the region decoding; fuzz_regions.py tries more."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers import forked_python
from helpers.full_product import IS_FULL

COUNT = int(os.environ.get("GPUPIPE_FUZZ_REGIONS", "4000" if IS_FULL else "400"))
LIMIT = 600


def test_no_damaged_file_does_harm() -> None:
    pytest.importorskip("gpupipe._jpeg", reason="the extension is not built")
    script = Path(__file__).with_name("fuzz_regions.py")
    done = forked_python.run([script, "--count", COUNT], timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert '"decoded": 0' not in done.stdout
