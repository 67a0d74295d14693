"""Trains with Ray Train on two workers, and writes what each of them found, as JSON lines.

python ray_ranks.py CONFIG FOLDER [CONFIG FOLDER...]
"""

import json
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig

import gpupipe

KILLED_AT = 2
CPUS = 4
"""For two ranks, and for the two workers of an engine ray."""


def train(settings: dict[str, str]) -> None:
    """Write the ids of each step once a checkpoint has it; end rank 1 at a step, once."""
    rank, folder = ray.train.get_context().get_world_rank(), Path(settings["folder"])
    mark = folder / "killed"
    with gpupipe.load(settings["config"]) as loader, log_file(folder, rank) as log:
        checkpoint = ray.train.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as saved:
                loader.load_state_dict(json.loads(Path(saved, "loader.json").read_text()))
        for step, batch in enumerate(loader):
            if rank == 1 and step == KILLED_AT and not mark.exists():
                mark.touch()
                wait_for_checkpoints(folder, KILLED_AT)
                os._exit(1)
            report(loader, rank)
            ids = batch["id"].tolist()
            log.write(json.dumps({"resumed": checkpoint is not None, "ids": ids}) + "\n")
    tell(settings["config"], folder)


def wait_for_checkpoints(folder: Path, count: int) -> None:
    """Wait until Ray Train, which takes reports in its own time, has the last of them."""
    snapshot = folder / "storage" / "train" / "checkpoint_manager_snapshot.json"
    deadline = time.monotonic() + 120
    saved = 0
    while saved < count:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        with suppress(OSError, ValueError):  # not there yet, or not yet whole
            saved = len(json.loads(snapshot.read_text())["checkpoint_results"])


def log_file(folder: Path, rank: int) -> TextIO:
    """Each line must be on disk before the process is killed."""
    return (folder / f"rank{rank}").open("a", buffering=1)


def report(loader: gpupipe.Loader, rank: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))
        checkpoint = Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({}, checkpoint=checkpoint)


def tell(config: str, folder: Path) -> None:
    """Write which rank load() takes this worker for, if Ray Train alone can say it."""
    from gpupipe.runtime.ranks import local_rank, ranks_on_machine

    torch.distributed.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
    rank = ray.train.get_context().get_world_rank()
    with gpupipe.load(config) as loader:
        facts: dict[str, Any] = {
            "shard": [loader.sampler.rank, loader.sampler.world_size],
            "here": [local_rank(), ranks_on_machine()],
        }
    (folder / f"told{rank}").write_text(json.dumps(facts))


def main(words: list[str]) -> None:
    """Train with each config in its folder, on one Ray."""
    ray.init(address="local", num_cpus=CPUS, include_dashboard=False)
    for config, folder in zip(words[::2], words[1::2], strict=True):
        ray.train.torch.TorchTrainer(
            train,
            train_loop_config={"config": config, "folder": folder},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(
                name="train",
                storage_path=str(Path(folder, "storage")),
                failure_config=FailureConfig(max_failures=1),
            ),
        ).fit()
    ray.shutdown()


if __name__ == "__main__":
    main([str(Path(word).resolve()) for word in sys.argv[1:]])
