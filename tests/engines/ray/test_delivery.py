"""What the trainer sees of samples that a worker cannot read, how its waiting is measured, and how
the number of workers follows it.
"""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpupipe.engines.ray.delivery import PERIOD, Autoscaler, WaitMeter
from gpupipe.errors import SampleError, TooManyBadError
from gpupipe.sampling.sampler import Plan
from helpers.loaders import load
from helpers.ray_batches import PIPELINE, batches, ray_options
from helpers.ray_cluster import RayCluster


@pytest.fixture
def broken(tmp_path: Path, faces: Path) -> tuple[Path, Path]:
    """A copy of the faces, and a file in it that is cut off."""
    root = tmp_path / "broken"
    shutil.copytree(faces, root)
    file = sorted(root.rglob("*.jpg"))[20]
    file.write_bytes(file.read_bytes()[:1000])
    return root, file


def test_a_corrupt_sample_is_the_same_error_and_names_the_node(
    cluster: RayCluster, broken: tuple[Path, Path]
) -> None:
    root, file = broken
    with load(root, PIPELINE, shuffle=False, **ray_options(2)) as loader:
        iterator = iter(loader)
        ids = []
        with pytest.raises(SampleError, match=r"cut off.*on node \S+ \(") as error:
            for batch in iterator:
                ids += batch["id"].tolist()
        assert ids == list(range(14)), "the batches before it were delivered"
        assert error.value.path == str(file)


def test_skipped_samples_are_listed_at_the_trainer(
    cluster: RayCluster, broken: tuple[Path, Path], tmp_path: Path
) -> None:
    root, file = broken
    options = {"on_error": "skip", "max_bad": 0.02, "quarantine": tmp_path / "bad.jsonl"}
    with load(root, PIPELINE, **ray_options(2), **options) as loader:
        for _ in range(2):
            ids = [id for batch in loader for id in batch["id"].tolist()]
            assert sorted(ids) == [n for n in range(60) if n != 20]
        assert len(loader.engine.quarantine) == 1
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == str(file)
    options["max_bad"] = 0.01
    with (
        load(root, PIPELINE, **ray_options(1), **options) as loader,
        pytest.raises(TooManyBadError, match="1 of 60"),
    ):
        batches(loader)


class Pool:
    """Counts workers; `is_settled` says whether they are ready."""

    target = 1
    is_settled = True

    def resize(self, count: int) -> None:
        self.target = count


class Trainer:
    """A trainer that takes batches on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pool: Any = Pool()
        self.meter = WaitMeter(Autoscaler(self.pool, (1, 3)), lambda: self.now)

    def train(self, share: float, steps: int = int(PERIOD), validation: float = 0.0) -> None:
        """Take a batch, and then one a second in an epoch of `steps` steps.

        Args:
            share: The share of each second that the trainer waits.
            steps: Seconds.
            validation: Seconds of use of the last batch.
        """

        def deliver() -> Iterator[tuple[Plan, dict[str, Any]]]:
            for step in range(steps + 1):
                self.now += share
                yield Plan(0, np.zeros(1, np.int64), 0, step == steps), {}

        for plan, _ in self.meter.measure(deliver()):
            self.now += validation if plan.last else 1 - share


def test_workers_follow_the_waiting_from_1_to_3_and_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer, counts = Trainer(), []
    with caplog.at_level(logging.WARNING, "gpupipe"):
        for share in (0.06, 0.5, 0.5, 0.02, 0.005, 0.0, 0.0):
            trainer.train(share)
            counts.append(trainer.pool.target)
    assert counts == [2, 3, 3, 3, 2, 1, 1]
    assert len(caplog.records) == 4
    assert "6.0 %" in caplog.text and "2 instead of 1 Ray workers" in caplog.text


def test_the_time_between_epochs_does_not_count() -> None:
    trainer = Trainer()
    trainer.train(0.06, 5, validation=1000)
    trainer.train(0.06, 4)
    assert trainer.pool.target == 1
    trainer.train(0.06, 1)
    assert trainer.pool.target == 2


def test_nothing_is_decided_before_a_new_worker_is_ready() -> None:
    trainer = Trainer()
    trainer.train(1.0)
    trainer.pool.is_settled = False
    trainer.train(1.0, 5 * int(PERIOD))
    assert trainer.pool.target == 2
    trainer.pool.is_settled = True
    trainer.train(1.0)
    assert trainer.pool.target == 3


def test_waiting_is_measured_apart_from_use() -> None:
    trainer = Trainer()
    trainer.train(0.25, 2, validation=0.75)
    meter = trainer.meter
    assert (meter.batches, meter.waited, meter.used) == (3, 0.75, 2.25)
    assert meter.wait_share == 0.25
