"""Random schedules of disasters for clients that get their batches in order: one client, ranks, or
all clients of a broadcast. Order and states must be those of a loader in process, to the sample.

    python tests/server/ordered_schedules.py --count 40 --jobs 8
    python tests/server/ordered_schedules.py --count 160 --jobs 8 --scale 0.1 --batches 60

A client writes down the ids of every batch that its consumer gets, and its state_dict() behind it.
Meanwhile clients and the server are killed (SIGKILL), or paused (SIGSTOP) for 8 to 15 seconds,
around the heartbeat timeout of 10; the server is also stopped (SIGTERM) and started again. A new
client goes on from the last state that was written down.
`--scale` multiplies all timeouts and pauses.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import schedules

import gpupipe
import gpupipe.engines.remote.connection
from gpupipe.server import connections, service
from gpupipe.server.options import ServerOptions

EPOCHS = 2
CLIENTS = {"one client": 1, "ranks": 2, "broadcast": 2}
EVENTS = {
    "pause client": 5,
    "pause server": 2,
    "kill client": 2,
    "kill server": 2,
    "stop server": 2,
}
Line = list[int]
"""Epoch and position of the state behind a batch, then the ids of the batch."""


def divide_timeouts(scale: float) -> None:
    """Multiply the periods that are no options: in this process and its children."""
    gpupipe.engines.remote.connection.HEARTBEAT_SECONDS *= scale
    connections.HEARTBEAT_MS = int(connections.HEARTBEAT_MS * scale)
    connections.HEARTBEAT_TIMEOUT_MS = int(connections.HEARTBEAT_TIMEOUT_MS * scale)
    service._TICK_MS = int(service._TICK_MS * scale)


def shard_of(kind: str, number: int) -> dict[str, int]:
    ranks = CLIENTS[kind] if kind == "ranks" else 1
    return {"rank": number % ranks, "world_size": ranks}


def consume(address: str, log: Path, transport: str, pause: float, shard: dict[str, int]) -> None:
    """Take all epochs, from the last state in the log on."""
    warnings.simplefilter("ignore")
    dice = random.Random(str(log))
    with gpupipe.connect(
        address, ids=True, device="cpu", transport=transport, shard=shard
    ) as loader:
        loader.sampler.set_epoch(0)
        lines = read_log(log)
        if lines:
            epoch, position = lines[-1][:2]
            loader.load_state_dict(loader.state_dict() | {"epoch": epoch, "position": position})
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        while loader.sampler.epoch < EPOCHS:
            for batch in loader:
                os.write(file, json.dumps(line_of(loader, batch)).encode() + b"\n")
                time.sleep(dice.uniform(0, 2 * pause))


def line_of(loader: gpupipe.Loader, batch: dict[str, Any]) -> Line:
    state = loader.state_dict()
    return [state["epoch"], state["position"], *batch["id"].tolist()]


def read_log(log: Path) -> list[Line]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


class Stage:
    """A server, its clients, and what happens to them: a function of the seed."""

    def __init__(self, seed: int, folder: Path, batches: int, scale: float) -> None:
        self.dice, self.folder, self.scale = random.Random(seed), folder, scale
        self.kind = self.dice.choice(list(CLIENTS))
        self.resume = self.dice.random() < 0.5
        self.config = schedules._config(folder, 2 * batches * CLIENTS[self.kind] - 1, 2)
        if self.dice.random() < 0.5:
            self.config["loader"]["engine"] = "cpu"
            del self.config["loader"]["workers"]
        self.pause = 8.0 * scale / batches
        self.port = schedules._free_port()
        self.done: Counter[str] = Counter()
        self.clients: list[Any] = []
        self.server = self.start_server()
        self.clients = [self.start_client(n) for n in range(CLIENTS[self.kind])]

    def start_server(self) -> Any:
        options = ServerOptions(
            address=f"tcp://127.0.0.1:{self.port}",
            state=self.folder / "state",
            resume=self.resume,
            mode="broadcast" if self.kind == "broadcast" else "share",
            clients=CLIENTS[self.kind] if self.kind == "ranks" else None,
            heartbeat_timeout=10 * self.scale,
            session_timeout=60 * self.scale,
        )
        return self._start(schedules.serve, self.config, options)

    def start_client(self, number: int) -> Any:
        return self._start(
            consume,
            f"tcp://127.0.0.1:{self.port}",
            self.log(number),
            self.dice.choice(["auto", "tcp"]),
            self.pause,
            shard_of(self.kind, number),
        )

    def _start(self, target: Any, *arguments: Any) -> Any:
        process = schedules._FORK.Process(target=target, args=arguments)
        process.start()
        return process

    def log(self, number: int) -> Path:
        return self.folder / f"client-{number}.log"

    def happen(self) -> None:
        """One disaster."""
        living = [n for n, client in enumerate(self.clients) if client.is_alive()]
        if not living:
            return
        kind = self.dice.choices(list(EVENTS), list(EVENTS.values()))[0]
        number, seconds = self.dice.choice(living), self.dice.uniform(8, 15) * self.scale
        self.done[kind] += 1
        if kind == "pause client":
            schedules._pause(self.clients[number], seconds)
        elif kind == "pause server":
            schedules._pause(self.server, seconds)
        elif kind == "kill client":
            self._end(self.clients[number], signal.SIGKILL)
            self.clients[number] = self.start_client(number)
        else:
            self._end(self.server, signal.SIGKILL if kind == "kill server" else signal.SIGTERM)
            time.sleep(seconds / 10)
            self.server = self.start_server()

    def _end(self, process: Any, number: int) -> None:
        os.kill(process.pid, number)
        process.join()

    def wait_for_batches(self) -> None:
        """Wait until all clients have begun."""
        while not all(self.log(number).exists() for number in range(len(self.clients))):
            assert all(client.is_alive() for client in self.clients), "a client failed"
            time.sleep(0.02)

    def wait(self, limit: float) -> None:
        """Wait until all clients have ended."""
        deadline = time.monotonic() + limit
        while any(client.is_alive() for client in self.clients):
            assert time.monotonic() < deadline, "it did not end"
            assert self.server.is_alive(), "the server ended by itself"
            time.sleep(0.05)
        assert all(client.exitcode == 0 for client in self.clients), "a client failed"

    def check(self) -> int:
        """Return the number of batches. Raises AssertionError unless all are as in process."""
        for number in range(len(self.clients)):
            expected: list[Line] = []
            with gpupipe.load(self.config, ids=True, shard=shard_of(self.kind, number)) as loader:
                while loader.sampler.epoch < EPOCHS:
                    expected += [line_of(loader, batch) for batch in loader]
            found = read_log(self.log(number))
            for step, (ours, theirs) in enumerate(zip(found, expected, strict=False)):
                assert ours == theirs, f"client {number}, batch {step}: {ours}, not {theirs}"
            assert len(found) == len(expected), (number, len(found), len(expected))
            self.done["batches"] += len(found)
        return self.done["batches"]

    def end(self) -> None:
        for process in [*self.clients, self.server]:
            process.kill()
            process.join()


def run_schedule(
    seed: int, batches: int, disasters: int, scale: float
) -> tuple[str, Counter[str], float]:
    """One schedule. Return how it ended, what happened, and how many seconds it took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        stage = Stage(seed, Path(name), batches, scale)
        try:
            stage.wait_for_batches()
            for _ in range(disasters):
                time.sleep(stage.dice.uniform(0.1, 3) * scale)
                stage.happen()
            stage.wait(240)
            stage.check()
            outcome = "ok"
        except AssertionError as e:
            outcome = f"FAILED: {e}"
        finally:
            stage.end()
        stage.done[stage.kind] += 1
        return outcome, stage.done, time.monotonic() - started


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=40, help="schedules (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first")
    parser.add_argument("--batches", type=int, default=150, help="of a client in an epoch")
    parser.add_argument("--disasters", type=int, default=5, help="in a schedule")
    parser.add_argument("--scale", type=float, default=1.0, help="of all timeouts and pauses")
    parser.add_argument("--jobs", type=int, default=1, help="schedules at once")
    arguments = parser.parse_args()
    divide_timeouts(arguments.scale)
    total: Counter[str] = Counter()
    failed = 0
    with ProcessPoolExecutor(arguments.jobs, schedules._FORK) as jobs:
        seeds = {
            jobs.submit(
                run_schedule, seed, arguments.batches, arguments.disasters, arguments.scale
            ): seed
            for seed in range(arguments.first, arguments.first + arguments.count)
        }
        for job in as_completed(seeds):
            outcome, done, seconds = job.result()
            total += done
            failed += outcome != "ok"
            print(f"seed {seeds[job]}: {outcome} in {seconds:.1f} s, {dict(done)}", flush=True)
    ok = arguments.count - failed
    print(f"{ok} of {arguments.count} schedules ok: {dict(total)}, load {os.getloadavg()[0]:.1f}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
