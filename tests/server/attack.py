"""Attacks a server that it starts, and prints its memory and whether a good client still reads.

    python tests/server/attack.py --seconds 60
    python tests/server/attack.py --rate 500 --attacks idle

Attacks, all at once unless --attacks names some:

- idle: connections that say nothing, and stay open.
- handshake: connections that shake hands as ZeroMQ does, and open no session.
- endless: messages without an end, of empty frames, slower than a connection may send. ZeroMQ takes
  64 bytes of memory for each frame of two bytes.

Meanwhile a client reads epochs. The script ends with 1 if an epoch was wrong, if the client read
nothing in the last third of the time, or if the server took more memory than --limit allows.
"""

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import create_connection, socket
from typing import Any

import numpy as np
import yaml
from PIL import Image

import gpupipe
from gpupipe.server.metrics import fetch_stats

SAMPLES = 23
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 32)
READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
EMPTY_FRAME = b"\x01\x00"
"""Two bytes that say that more frames come."""
ENDLESS_PEERS, ENDLESS_BYTES_PER_SECOND = 4, 1_000_000


class Attack:
    """Connections to a server until `seconds` are over, each kind in a thread of its own."""

    def __init__(self, port: int, rate: float, seconds: float) -> None:
        self._port, self._rate = port, rate
        self._end = time.monotonic() + seconds
        self._open: list[socket] = []
        self.counts: Counter[str] = Counter()

    def is_over(self) -> bool:
        return time.monotonic() >= self._end

    def idle(self) -> None:
        self._keep_connecting("idle connections", b"")

    def handshake(self) -> None:
        ready = b"\x04" + bytes([len(READY)]) + READY
        self._keep_connecting("connections that shook hands", GREETING + ready)

    def endless(self) -> None:
        peers = [threading.Thread(target=self._send_endless) for _ in range(ENDLESS_PEERS)]
        for peer in peers:
            peer.start()
        for peer in peers:
            peer.join()

    def _keep_connecting(self, name: str, words: bytes) -> None:
        while not self.is_over():
            try:
                connection = self._connect()
                self._open.append(connection)
                connection.sendall(words)
                self.counts[name] += 1
            except OSError:
                self.counts["connections refused or cut at once"] += 1
            time.sleep(1 / self._rate)

    def _send_endless(self) -> None:
        piece = EMPTY_FRAME * (ENDLESS_BYTES_PER_SECOND // 20)
        while not self.is_over():
            time.sleep(0.01)
            with suppress(OSError), self._connect() as connection:
                connection.sendall(GREETING + b"\x04" + bytes([len(READY)]) + READY)
                self.counts["endless messages"] += 1
                while not self.is_over():
                    connection.sendall(piece)
                    self.counts["bytes of endless messages"] += len(piece)
                    time.sleep(0.1)

    def _connect(self) -> socket:
        return create_connection(("127.0.0.1", self._port), timeout=20)


class Reader:
    """A good client, which reads epochs until the attack is over."""

    def __init__(self, address: str, is_over: Callable[[], bool]) -> None:
        self._address, self._is_over = address, is_over
        self.times: list[float] = []
        self.problem = ""

    def run(self) -> None:
        try:
            with gpupipe.connect(self._address, device="cpu", ids=True) as loader:
                while not self._is_over():
                    ids = sorted(i for batch in loader for i in batch["id"].tolist())
                    if ids != list(range(SAMPLES)):
                        self.problem = f"an epoch had the samples {ids}"
                    self.times.append(time.monotonic())
        except gpupipe.GpupipeError as e:
            self.problem = str(e)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = ("idle", "handshake", "endless")
    parser.add_argument("--attacks", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--seconds", type=float, default=60.0, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=200.0, help="connections a second, each kind")
    parser.add_argument("--limit", type=int, default=100, help="most MiB that the server may grow")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpupipe", "serve", str(write_config(Path(folder)))]
        server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            return attack(server.stdout.readline().strip(), server.pid, arguments)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def write_config(folder: Path) -> Path:
    """Write a few images of noise and a config that serves them."""
    rng = np.random.default_rng(7)
    (folder / "images" / "a").mkdir(parents=True)
    for n in range(SAMPLES):
        pixels = rng.integers(0, 256, (10, 12, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / "a" / f"{n:02}.png")
    config: dict[str, Any] = {
        "data": {"source": "folder", "root": str(folder / "images")},
        "pipeline": ["decode"],
        "loader": {"engine": "dataloader", "workers": 0, "device": "cpu", "batch_size": 3},
    }
    path = folder / "served.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def attack(address: str, pid: int, arguments: argparse.Namespace) -> int:
    attacker = Attack(int(address.rpartition(":")[2]), arguments.rate, arguments.seconds)
    reader = Reader(address, attacker.is_over)
    threads = [threading.Thread(target=getattr(attacker, name)) for name in arguments.attacks]
    before, largest, started = read_memory(pid), 0.0, time.monotonic()
    for thread in [*threads, threading.Thread(target=reader.run)]:
        thread.start()
    while not attacker.is_over():
        largest = max(largest, read_memory(pid))
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    last_third = started + arguments.seconds * 2 / 3
    late = sum(when > last_third for when in reader.times)
    for name, count in attacker.counts.items():
        print(f"{name}: {count:,}")
    print(f"connections that the server cut: {fetch_stats(address)['cut_connections']:,}")
    print(f"memory: {before:.0f} MiB before, {largest:.0f} at most, {read_memory(pid):.0f} after")
    print(f"epochs of the good client: {len(reader.times):,}, {late:,} in the last third")
    is_fine = not reader.problem and late > 0 and largest - before <= arguments.limit
    print("held" if is_fine else f"BROKEN {reader.problem}")
    return 0 if is_fine else 1


def read_memory(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
