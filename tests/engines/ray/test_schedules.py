"""Random disasters of a cluster, as tests/ray_schedules.py draws them: fifty take a quarter of an
hour; in these two, each kind of event happens.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "ray_schedules.py"
COUNT, FIRST = 2, 9


def test_disasters_change_no_bit_and_leave_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--count", str(COUNT), "--seed", str(FIRST)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    rows = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[COUNT + 1 :])
    assert f"{COUNT} of {COUNT}" in done.stdout
    assert int(rows["repeated tasks"]) > 0, "workers had tasks when they were hit"
