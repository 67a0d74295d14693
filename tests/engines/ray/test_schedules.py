"""One of the random schedules of disasters that tests/ray_schedules.py draws: workers are killed
and paused, and a node is removed and added. Fifty take a quarter of an hour.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "ray_schedules.py"
SEED = 29


def test_disasters_change_no_bit_and_leave_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--count", "1", "--seed", str(SEED)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "1 of 1" in done.stdout
    repeated = re.search(r"repeated tasks +(\d+)", done.stdout)
    assert repeated and int(repeated[1]) > 0, "workers had tasks when they were hit"
