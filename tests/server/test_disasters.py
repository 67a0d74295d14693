"""Processes that are killed and paused: nothing is lost, nothing comes twice, nothing is left
behind.
"""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import gpupipe
from gpupipe.server.start import ServerProcess, start_server
from helpers import forked_python
from helpers.full_product import IS_FULL


def test_random_schedules() -> None:
    """All fifty, with epochs of 1,000 batches: python tests/server/schedules.py --count 50."""
    script = Path(__file__).with_name("schedules.py")
    done = forked_python.run([script, "--count", "1", "--batches", "200"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 schedules" in done.stdout


def test_random_schedules_in_order() -> None:
    """Some short ones with all timeouts divided by ten, for the longer ones take minutes: python
    tests/server/ordered_schedules.py. They take about ten seconds, since they mostly wait.
    """
    script = Path(__file__).with_name("ordered_schedules.py")
    count = 10 if IS_FULL else 5
    words = "--first 4 --scale 0.1 --batches 30 --disasters 3"
    done = forked_python.run([script, "--count", count, "--jobs", count, *words.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} of {count} schedules ok" in done.stdout


PARENT = """
import sys, json, time
from gpupipe.server.start import start_server
server = start_server(json.loads(sys.argv[1]), port=0)
print(server.pid, server.address, flush=True)
time.sleep(600)
"""


def test_a_server_process_ends_with_its_parent(config: dict[str, Any]) -> None:
    with forked_python.Process(
        ["-c", PARENT, json.dumps(config)], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        with gpupipe.connect(address, device="cpu", ids=True, patience=2) as loader:
            iterator = iter(loader)
            next(iterator)
            parent.send_signal(signal.SIGKILL)
            parent.wait()
            deadline = time.monotonic() + 20
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert not Path(f"/proc/{pid}").exists()
            with pytest.raises(gpupipe.ServerError, match="was silent for"):
                list(iterator)


@pytest.mark.usefixtures("forked_executable")
def test_a_server_process(config: dict[str, Any], tmp_path: Path) -> None:
    server = start_server(config, port=0, hwm=2)
    assert isinstance(server, ServerProcess)
    with server, gpupipe.connect(server.address, device="cpu", ids=True) as loader:
        assert sorted(i for b in loader for i in b["id"].tolist()) == list(range(23))
    assert not Path(f"/proc/{server.pid}").exists()
    with pytest.raises(gpupipe.ServerError, match=r"did not start: .*nowhere"):
        start_server(
            config | {"data": {"source": "folder", "root": str(tmp_path / "nowhere")}}, port=0
        )
    with pytest.raises(gpupipe.ServerError, match="no option 'compres'; did you mean 'compress'"):
        start_server(config, port=0, compres="lz4")
    with pytest.raises(gpupipe.ConfigError):
        start_server(config | {"pipeline": ["decoed"]}, port=0)
