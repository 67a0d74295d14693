"""Some seconds of fuzzing, of all parsers in turn: GPUPIPE_FUZZ_SECONDS, by default 2."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.full_product import IS_FULL


def test_nothing_is_found() -> None:
    pytest.importorskip(
        "atheris",
        reason="atheris is not installed: there are builds for Linux and Python 3.11 to 3.13",
    )
    seconds = int(os.environ.get("GPUPIPE_FUZZ_SECONDS", "5" if IS_FULL else "2"))
    command = [
        sys.executable,
        str(Path(__file__).with_name("fuzz.py")),
        "all",
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=seconds + 200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert '"taken": 0' not in done.stdout
