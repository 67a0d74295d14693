"""gpupipe as a user calls it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def cli() -> Any:
    """Runs the command in a folder; words and environment as given."""

    def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gpupipe", *words]
        return subprocess.run(
            command,
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=250,
        )

    return run
