"""A server whose engine fails, or whose data cannot be read: it says so, and every client gets the
error.
"""

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

import gpupipe
from gpupipe.server.start import ServerProcess, start_server
from helpers.forked_python import Process
from helpers.leftovers import list_descendants
from helpers.served import serving


def _kill_workers() -> None:
    """Kill the DataLoader workers of the servers that this process has started."""
    workers = [
        pid
        for pid in list_descendants(os.getpid())
        if "pt_data_worker" in Path(f"/proc/{pid}/comm").read_text()
    ]
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
    assert workers


def test_a_server_whose_worker_was_killed_ends_and_tells_everyone(
    config: dict[str, Any], tmp_path: Path
) -> None:
    """Who iterates, who is connected, and who comes later."""
    (tmp_path / "little.yaml").write_text(yaml.safe_dump(config))
    words = [
        "-m",
        "gpupipe",
        "serve",
        str(tmp_path / "little.yaml"),
        "--port",
        "0",
        "--hwm",
        "1",
        "workers=1",
    ]
    with Process(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stderr is not None
            address = server.stdout.readline().strip()
            with (
                gpupipe.connect(address, device="cpu") as loader,
                gpupipe.connect(address, device="cpu") as idle,
            ):
                list(loader)
                _kill_workers()
                with pytest.raises(gpupipe.EngineError, match="worker"):
                    for _ in range(100):
                        list(loader)
                assert server.wait(60) == 1
                for either in (loader, idle):
                    with pytest.raises(gpupipe.EngineError, match="worker"):
                        list(either)
            with pytest.raises(gpupipe.ServerError, match="is a server running there"):
                gpupipe.connect(address, device="cpu", patience=1)
            said = server.stderr.read()
        finally:
            server.kill()
    assert [
        line for line in said.splitlines() if line.startswith("error: ") and "worker" in line
    ], said
    assert "Traceback" not in said


@pytest.mark.usefixtures("forked_executable")
def test_a_server_process_whose_worker_was_killed_says_so(
    config: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    server = start_server(config | {"loader": config["loader"] | {"workers": 1}}, port=0, hwm=1)
    assert isinstance(server, ServerProcess)
    with server, gpupipe.connect(server.address, device="cpu") as loader:
        list(loader)
        _kill_workers()
        with pytest.raises(gpupipe.EngineError, match="worker"):
            for _ in range(100):
                list(loader)
    assert f"the server at {server.address} ended: " in capfd.readouterr().err


def test_data_that_cannot_be_read_are_an_error_for_each_client(
    config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also for one that comes when the engine makes nothing any more."""
    for name in "abcdef":
        (tmp_path / name).mkdir()
        (tmp_path / name / "0.png").write_bytes(b"no image")
    Image.new("RGB", (4, 4)).save(tmp_path / "a" / "0.png")
    broken = config | {"data": {"source": "folder", "root": str(tmp_path)}}
    changes = {
        "shuffle": False,
        "batch_size": 2,
        "on_error": "skip",
        "max_bad": 0.2,
        "quarantine": str(tmp_path / "list.jsonl"),
    }
    with serving(broken, changes) as server:
        for _ in range(3):
            with (
                gpupipe.connect(server.address, device="cpu", patience=20) as loader,
                pytest.raises(gpupipe.TooManyBadError, match=r"max_bad=0\.2"),
            ):
                list(loader)
    assert len([r for r in caplog.records if "1 client got an error: " in r.getMessage()]) == 3
