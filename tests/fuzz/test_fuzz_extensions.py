"""Some hundred cases for each fuzzer of the extensions; `make sanitize` tries more."""

import json
from pathlib import Path

import pytest

from helpers import forked_python
from helpers.full_product import IS_FULL

LIMIT = 600
COUNTED = {
    "regions": "decoded",
    "pngs": "decoded",
    "calls": "calls",
    "conversions": "images",
    "files": "read",
    "headers": "sizes",
}
"""What a fuzzer counts, which a run must have some of."""


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("regions", 4000 if IS_FULL else 100),
        ("pngs", 4000 if IS_FULL else 100),
        ("colors", 2000 if IS_FULL else 200),
        ("geometry", 5000 if IS_FULL else 200),
        ("programs", 5000 if IS_FULL else 200),
        ("degradations", 4000 if IS_FULL else 200),
        ("calls", 2000 if IS_FULL else 100),
        ("conversions", 4000 if IS_FULL else 200),
        ("draws", 10_000 if IS_FULL else 500),
        ("files", 2000 if IS_FULL else 100),
        ("headers", 8000 if IS_FULL else 500),
    ],
)
def test_nothing_is_found(name: str, count: int) -> None:
    for extension in ("gpupipe._kernels", "gpupipe._jpeg", "gpupipe._png"):
        pytest.importorskip(extension, reason="the extension is not built")
    script = Path(__file__).with_name(f"fuzz_{name}.py")
    done = forked_python.run([script, "--count", count], timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["cases"] == count
    assert name not in COUNTED or report[COUNTED[name]]
