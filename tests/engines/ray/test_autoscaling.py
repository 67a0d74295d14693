from __future__ import annotations

import logging

import pytest

from gpupipe.engines.ray.autoscaling import PERIOD, Autoscaler


class Pool:
    """Counts workers; `is_settled` says whether they are ready."""

    target = 1
    is_settled = True

    def resize(self, count: int) -> None:
        self.target = count


class Trainer:
    """A trainer whose steps take a second each on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pool = Pool()
        self.autoscaler = Autoscaler(self.pool, 1, 3, lambda: self.now)
        self.autoscaler.start()
        self.autoscaler.step(0.0)

    def train(self, share: float, seconds: float = PERIOD) -> None:
        for _ in range(int(seconds)):
            self.now += 1
            self.autoscaler.step(share)


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
    trainer.train(0.06, 5)
    trainer.now += 1000  # validation
    trainer.autoscaler.start()
    trainer.autoscaler.step(0.0)
    trainer.train(0.06, 4)
    assert trainer.pool.target == 1
    trainer.train(0.06, 1)
    assert trainer.pool.target == 2


def test_nothing_is_decided_before_a_new_worker_is_ready() -> None:
    trainer = Trainer()
    trainer.train(1.0)
    trainer.pool.is_settled = False
    trainer.train(1.0, 5 * PERIOD)
    assert trainer.pool.target == 2
    trainer.pool.is_settled = True
    trainer.train(1.0)
    assert trainer.pool.target == 3
