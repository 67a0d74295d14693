"""Fuel's tutorial, the two files in examples/fuel: batches are made while the model trains."""

import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FUEL = Path(__file__).parents[2] / "examples" / "fuel"
COUNT, SECONDS = 20, 120


def wait_for(condition: Callable[[], bool], server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < end
        time.sleep(0.01)


def replace(text: str, **parts: tuple[str, str]) -> str:
    for old, new in parts.values():
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
        return number


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A file with a byte for each batch that the server has made."""
    path = tmp_path / "made"
    path.touch()
    return path


@pytest.fixture
def server(tmp_path: Path, port: int, made: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The tutorial's server, with fewer batches, each of which it notes."""
    text = replace(
        (FUEL / "server.py").read_text(),
        count=("range(1000)", f"range({COUNT})"),
        port=('device="cpu"))', f'device="cpu"), port={port})'),
        wait=("    time.sleep(0.005)", f"    open({str(made)!r}, 'ab').write(b'.')"),
    )
    (tmp_path / "server.py").write_text(text)
    process = subprocess.Popen([sys.executable, "server.py"], cwd=tmp_path)
    yield process
    process.kill()
    process.wait()


def test_training_takes_no_longer_than_training_alone(
    tmp_path: Path, port: int, made: Path, server: subprocess.Popen[bytes]
) -> None:
    """A step ends when the next batch is made: if batches were made between steps, none would."""

    def listens() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    wait_for(listens, server)
    before, steps = made.stat().st_size, 0

    def step() -> None:
        nonlocal steps
        steps += 1
        wait_for(lambda: made.stat().st_size >= before + min(steps + 1, COUNT), server)

    text = replace(
        (FUEL / "train.py").read_text(),
        port=("False)", f"False, port={port})"),
        epochs=("range(5)", "range(1)"),
        wait=("time.sleep(0.01)", "step()"),
    )
    (tmp_path / "train.py").write_text(f"{text}stream.close()\n")
    runpy.run_path(str(tmp_path / "train.py"), {"step": step})
    assert steps == COUNT
