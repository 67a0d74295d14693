"""Random disasters of a Ray cluster while trainers go through their epochs.

Each schedule kills workers, removes and adds nodes, and pauses processes, while one or two trainers
take two epochs. The batches must be those of the local engine, to the bit, and nothing may be left.

Usage: python tests/ray_schedules.py [--count 50] [--seed 0]
"""

import argparse
import faulthandler
import random
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
import torch

from gpupipe.errors import GpupipeError
from helpers.loaders import load
from helpers.ray_cluster import RayCluster, assert_nothing_left, start_cluster, wait_until
from helpers.ray_disasters import EVENTS, Disasters, count_sends

EPOCHS = 2
NODES = 3
WATCHDOG = 240.0
STEPS = [
    "decode",
    {"resize": {"size": [32, 40]}},
    {"random_affine": {"degrees": 20}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
Batches = list[dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Schedule:
    """What happens: a function of the seed.

    Attributes:
        seed: Its number.
        options: Settings of the loaders.
        trainers: How many there are.
        events: What happens, by the number of batches that all trainers have.
    """

    seed: int
    options: dict[str, Any]
    trainers: int
    events: list[tuple[int, str]]

    @classmethod
    def draw(cls, seed: int) -> "Schedule":
        dice = random.Random(seed)
        trainers = dice.choice([1, 1, 1, 2])
        batch_size = dice.choice([3, 4, 5])
        options = {
            "batch_size": batch_size,
            "seed": seed,
            "shuffle": dice.random() < 0.8,
            "last_batch": "partial" if trainers == 1 else "drop",
            "prefetch": dice.choice([1, 2, 3]),
            "hwm": dice.choice([2, 4, 8]),
        }
        workers = dice.choice([1, 2, 3]) if trainers == 1 else 1
        ray_options = {"workers": workers, "ship": dice.choice(["uint8", "batch"])}
        ray_options["placement"] = dice.choice(["spread", "pack", "local_first"])
        batches = EPOCHS * 60 // batch_size
        count = dice.randint(1, 4)
        steps = sorted(dice.randint(0, batches - 4) for _ in range(count))
        events = [(step, dice.choice(EVENTS)) for step in steps]
        return cls(seed, options | {"ray": ray_options}, trainers, events)


@dataclass
class Outcome:
    """What happened in schedules.

    Attributes:
        counts: How often each event happened, and how many tasks were sent again.
        failures: Why a schedule failed, by its seed.
    """

    counts: Counter[str] = field(default_factory=Counter)
    failures: dict[int, str] = field(default_factory=dict)


class Trainer(threading.Thread):
    """Takes the epochs of one rank."""

    def __init__(self, root: Path, schedule: Schedule, rank: int, taken: threading.Semaphore):
        super().__init__(name=f"rank {rank}")
        shard = {"rank": rank, "world_size": schedule.trainers}
        settings = {"cpus": 1, "engine": "cpu", "wait": 60, **schedule.options["ray"]}
        options = {**schedule.options, "shard": shard, "threads": 1}
        with load(root, STEPS, engine="cpu", **{**options, "ray": {}}) as loader:
            self.expected = [_copy(batch) for _ in range(EPOCHS) for batch in loader]
        self.loader = load(root, STEPS, engine="ray", **{**options, "ray": settings})
        self.error: BaseException | None = None
        self._batches: Batches = []
        self._taken = taken

    def run(self) -> None:
        try:
            for _ in range(EPOCHS):
                for batch in self.loader:
                    self._batches.append(_copy(batch))
                    self._taken.release()
                    time.sleep(0.03)
        except BaseException as e:
            self.error = e

    def check(self) -> None:
        """Fail unless all batches came, once, in order, and equal to the bit."""
        if self.error is not None:
            raise self.error
        assert len(self._batches) == len(self.expected), (len(self._batches), len(self.expected))
        for number, (ours, theirs) in enumerate(zip(self._batches, self.expected, strict=True)):
            assert ours.keys() == theirs.keys()
            for name in ours:
                assert torch.equal(ours[name], theirs[name]), f"batch {number}: {name} differs"

    @property
    def workers(self) -> list[Any]:
        """The workers that are ready."""
        return list(self.loader.engine.pool.ready)  # type: ignore[attr-defined]


def _copy(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in batch.items()}


def run_schedule(schedule: Schedule, cluster: RayCluster, root: Path, counts: Counter[str]) -> None:
    """Run a schedule, and bring the cluster to its first number of nodes; raise what is wrong."""
    try:
        _run_schedule(schedule, cluster, root, counts)
    finally:
        restore(cluster)


def _run_schedule(
    schedule: Schedule, cluster: RayCluster, root: Path, counts: Counter[str]
) -> None:
    taken = threading.Semaphore(0)
    trainers = [Trainer(root, schedule, rank, taken) for rank in range(schedule.trainers)]
    disasters = Disasters(cluster, trainers, random.Random(schedule.seed), counts)
    with count_sends(counts):
        for trainer in trainers:
            trainer.start()
        done = 0
        for step, event in schedule.events:
            while done < step and any(trainer.is_alive() for trainer in trainers):
                disasters.repair()
                done += taken.acquire(timeout=0.2)
            disasters.happen(event)
        while any(trainer.is_alive() for trainer in trainers):
            disasters.repair()
            time.sleep(0.05)
        disasters.end()
    for trainer in trainers:
        trainer.loader.close()
    for trainer in trainers:
        trainer.check()
    counts["batches"] += sum(len(trainer.expected) for trainer in trainers)
    del trainers, trainer
    wait_until(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in disasters.pids),
        "processes of workers are left",
    )
    assert_nothing_left()


def restore(cluster: RayCluster) -> None:
    """Bring the cluster to its first number of nodes."""
    while len(cluster.nodes) > NODES - 1:
        cluster.remove_node(cluster.nodes[-1])
    while len(cluster.nodes) < NODES - 1:
        cluster.add_node()
    wait_until(lambda: ray.cluster_resources().get("CPU", 0) == NODES, "nodes do not come")


def run_schedules(root: Path, seeds: range) -> Outcome:
    """Run schedules on one cluster, and print how each ended.

    One that hangs ends the process, with the stacks of all threads.
    """
    outcome = Outcome()
    with start_cluster(NODES) as cluster:
        for seed in seeds:
            schedule = Schedule.draw(seed)
            started = time.monotonic()
            faulthandler.dump_traceback_later(WATCHDOG, exit=True)
            try:
                run_schedule(schedule, cluster, root, outcome.counts)
            except (AssertionError, GpupipeError, ray.exceptions.RayError) as e:
                outcome.failures[seed] = f"{type(e).__name__}: {e}"
            what = ", ".join(event for _, event in schedule.events)
            how = outcome.failures.get(seed, "ok")
            trainers = f"{schedule.trainers} trainers, {schedule.options['ray']['workers']} workers"
            print(f"{seed:4} {time.monotonic() - started:6.1f} s  {trainers}  {what}: {how}")
        faulthandler.cancel_dump_traceback_later()
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=50, help="how many schedules")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    parser.add_argument("--root", type=Path, help="a folder with 60 images")
    options = parser.parse_args()
    from gpupipe.runtime.progress import ignore_progress
    from gpupipe.sources.helpers.dataset_catalog import make_stand_in

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "faces"
        make_stand_in(root, 60, ignore_progress)
        outcome = run_schedules(root, range(options.seed, options.seed + options.count))
    print(f"schedules ok    {options.count - len(outcome.failures):5} of {options.count}")
    for name in ("batches", "tasks", "repeated tasks", *EVENTS):
        print(f"{name:15} {outcome.counts[name]:5}")
    return bool(outcome.failures)


if __name__ == "__main__":
    raise SystemExit(main())
