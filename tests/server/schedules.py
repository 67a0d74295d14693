"""Random schedules of disasters for a server and its clients: every sample of every epoch must be
consumed exactly once.

    python tests/server/schedules.py --count 50 --batches 1000

A server shares its batches among clients, each a process, which write down every batch that their
consumer gets. Meanwhile clients are killed (SIGKILL) and replaced, paused (SIGSTOP) and woken, and
so is the server. Then what was written down is checked:

- every sample was consumed in every epoch, and not only in the last batch of a client that was
  killed with it in its hands;
- a sample that was consumed twice was among the last MAX_UNACKED batches of a client that was
  killed before the server knew of it, all but once.
"""

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Any

import torchvision.transforms.v2  # noqa: F401  # so that copies of this process need not import it
from PIL import Image

import gpupipe
import gpupipe.engines.remote.engine
from gpupipe.protocol.messages import MAX_UNACKED
from gpupipe.server.options import ServerOptions
from gpupipe.server.start import run as run_server

HWM = 6

_FORK = multiprocessing.get_context("fork")
"""This process has imported all that a server or a client needs, and holds no threads: a copy of it
begins at once.
"""


def serve(config: dict[str, Any], options: ServerOptions) -> None:
    run_server(gpupipe.load(config), options)


def consume(address: str, log: Path, epochs: int, most: float, transport: str, seed: int) -> None:
    """A consumer that writes down (epoch, ids) of every batch as it gets it, and when it is done
    with it.
    """
    sleeps = random.Random(seed)
    with gpupipe.connect(address, ids=True, device="cpu", hwm=HWM, transport=transport) as loader:
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while loader.sampler.epoch < epochs:
            for batch in loader:
                line = [loader.sampler.epoch - 1, *batch["id"].tolist()]
                os.write(file, (" ".join(map(str, line)) + "\n").encode())
                time.sleep(sleeps.uniform(0, most))
                os.write(file, b"done\n")


@dataclass
class Client:
    process: Any
    log: Path
    killed: bool = False


@dataclass
class Stage:
    """The server, its clients, and what was done to them."""

    folder: Path
    config: dict[str, Any]
    epochs: int
    most_ms: float
    random: random.Random
    port: int = 0
    server: Any = None
    clients: list[Client] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def start_server(self) -> None:
        options = ServerOptions(
            address=f"tcp://127.0.0.1:{self.port}",
            state=self.folder / "state",
            resume=True,
            heartbeat_timeout=1.0,
            session_timeout=20.0,
            hwm=HWM,
        )
        self.server = _FORK.Process(target=serve, args=(self.config, options))
        self.server.start()

    def start_client(self) -> None:
        """Another one."""
        log = self.folder / f"client-{len(self.clients)}.log"
        transport, seed = self.random.choice(["auto", "tcp"]), self.random.randrange(2**30)
        process = _FORK.Process(
            target=consume,
            args=(
                f"tcp://127.0.0.1:{self.port}",
                log,
                self.epochs,
                self.most_ms / 1000,
                transport,
                seed,
            ),
        )
        self.clients.append(Client(process, log))
        process.start()

    def living(self) -> list[Client]:
        return [c for c in self.clients if c.process.is_alive()]

    def kill_server(self) -> None:
        self.server.kill()
        self.server.join()

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Whatever happens, no process is left."""
        try:
            yield
        finally:
            for process in [*(c.process for c in self.clients), self.server]:
                process.kill()
                process.join()


def disaster(stage: Stage) -> None:
    """One of those that can happen."""
    kind = stage.random.choices(
        ["kill client", "pause client", "kill server", "pause server"], [4, 4, 2, 1]
    )[0]
    living = stage.living()
    if kind.endswith("client") and not living:
        return
    stage.done[kind] += 1
    if kind == "kill client":
        victim = stage.random.choice(living)
        victim.killed = True
        victim.process.kill()
        victim.process.join()
        stage.start_client()
    elif kind == "pause client":
        _pause(stage.random.choice(living).process, stage.random.uniform(0.1, 2.5))
    elif kind == "kill server":
        stage.kill_server()
        time.sleep(stage.random.uniform(0, 0.5))
        stage.start_server()
    else:
        _pause(stage.server, stage.random.uniform(0.1, 1.5))


def _pause(process: Any, seconds: float) -> None:
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGCONT)


def run_schedule(
    seed: int,
    batches: int = 1000,
    batch_size: int = 2,
    epochs: int = 2,
    disasters: int = 8,
    most_ms: float = 12.0,
    limit: float = 240.0,
) -> dict[str, int]:
    """One schedule. Returns what was done, and how many batches were consumed twice because their
    client was killed. Raises AssertionError.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stage = Stage(
            folder,
            _config(folder, batches * batch_size, batch_size),
            epochs,
            most_ms,
            random.Random(seed),
            _free_port(),
        )
        with stage.ending():
            stage.start_server()
            for _ in range(3):
                stage.start_client()
            _wait_for_logs(stage, limit)
            for _ in range(disasters):
                time.sleep(stage.random.uniform(0.05, 0.6))
                disaster(stage)
            deadline = time.monotonic() + limit
            while stage.living():
                assert time.monotonic() < deadline, f"seed {seed}: it did not end"
                assert stage.server.is_alive(), f"seed {seed}: the server ended by itself"
                time.sleep(0.05)
            assert all(c.process.exitcode == 0 for c in stage.clients if not c.killed), (
                f"seed {seed}: a client failed"
            )
            again = check(stage, batches * batch_size)
        return {**stage.done, "batches consumed again": again, "clients": len(stage.clients)}


def _wait_for_logs(stage: Stage, limit: float) -> None:
    deadline = time.monotonic() + limit
    while not all(c.log.exists() for c in stage.clients):
        assert time.monotonic() < deadline, "the clients did not begin"
        assert len(stage.living()) == len(stage.clients), "a client failed"
        time.sleep(0.02)


def check(stage: Stage, samples: int) -> int:
    """Raises AssertionError unless every sample was consumed once.

    Returns how many batches were consumed again behind a client's death.
    """
    again = 0
    for epoch in range(stage.epochs):
        firm: dict[int, int] = defaultdict(int)
        excused: dict[int, int] = defaultdict(int)
        dropped: set[int] = set()
        for client in stage.clients:
            for number, (of, ids, unfinished) in enumerate(reversed(_taken(client.log))):
                maybe = client.killed and number < MAX_UNACKED
                for id in ids if of == epoch else ():
                    (excused if maybe else firm)[id] += 1
                    if client.killed and unfinished:
                        dropped.add(id)
        for id in range(samples):
            assert firm[id] + excused[id] > (
                1 if id in dropped and not firm[id] and excused[id] == 1 else 0
            ), f"epoch {epoch}: sample {id} was lost"
            assert firm[id] <= 1, (
                f"epoch {epoch}: sample {id} was consumed {firm[id]} times by clients that lived"
            )
        again += sum(firm[id] + excused[id] - 1 for id in range(samples)) // 2
    return again


def _taken(log: Path) -> list[tuple[int, list[int], bool]]:
    """The batches that a client got: epoch, ids, and whether it was not done with it when it
    ended.
    """
    lines = log.read_text().splitlines() if log.exists() else []
    after = [*lines[1:], ""][: len(lines)]
    return [
        (int(line.split()[0]), [int(n) for n in line.split()[1:]], then != "done")
        for line, then in zip(lines, after, strict=True)
        if line != "done"
    ]


def _config(folder: Path, samples: int, batch_size: int) -> dict[str, Any]:
    Image.new("RGB", (8, 8), (90, 120, 40)).save(folder / "dot.png")
    (folder / "list.csv").write_text("path,label\n" + "dot.png,0\n" * samples)
    loader = {
        "batch_size": batch_size,
        "engine": "dataloader",
        "workers": 0,
        "device": "cpu",
        "seed": 3,
    }
    return {
        "data": {"source": "file_list", "file": str(folder / "list.csv"), "root": str(folder)},
        "pipeline": ["decode"],
        "loader": loader,
    }


def _free_port() -> int:
    """One below those that the system gives to connections: nobody takes it between two starts."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket() as s, suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=5, help="schedules (default: %(default)s)")
    parser.add_argument(
        "--first", type=int, default=0, help="the seed of the first (default: %(default)s)"
    )
    parser.add_argument(
        "--batches", type=int, default=1000, help="in an epoch (default: %(default)s)"
    )
    arguments = parser.parse_args()
    total: dict[str, int] = defaultdict(int)
    for seed in range(arguments.first, arguments.first + arguments.count):
        started = time.monotonic()
        found = run_schedule(seed, arguments.batches)
        for what, count in found.items():
            total[what] += count
        print(f"seed {seed}: ok in {time.monotonic() - started:.1f} s, {found}", flush=True)
    print(f"{arguments.count} schedules: {dict(total)}, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
