from __future__ import annotations

import subprocess
import sys
import time

from gpupipe.bench.compare import disturbance
from gpupipe.bench.machine import OtherLoad


def test_what_other_processes_take_is_told_apart_and_said() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.3)
        with OtherLoad() as other_load:
            started = time.process_time()
            while time.process_time() < started + 0.3:
                pass
        assert other_load.cores > 0.15
        assert 0.25 < other_load.cpu_seconds < 0.5
    finally:
        busy.kill()
        busy.wait()
    assert "DISTURBED: other processes kept up to 0.9" in disturbance(0.9)[0]
    assert disturbance(0.01) == []
