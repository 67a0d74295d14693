"""How much of the time of training goes to waiting for data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gpupipe.loader import Loader


class Monitor:
    """Watches a loader while a training loop runs over it.

    monitor = gpupipe.Monitor(loader) for batch in monitor:       # or over the loader itself, with
    monitor.step() behind every training step
        ...
    print(monitor.summary())    # waiting for data: 31 % of step time

    Time between epochs (validation, checkpoints) is not counted where the monitor is iterated. Work
    that a GPU does while the loop is already in the next step is no waiting: what is measured is
    how long the loop stood still for a batch.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.steps = 0
        self.seconds = 0.0
        """Of all steps, waiting included."""
        self.waited = 0.0
        """Seconds of them spent waiting for a batch."""
        self.resume()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.resume()
        for batch in self.loader:
            yield batch
            self.step()

    def resume(self) -> None:
        """The step that is measured next begins now: what has passed since the last one is left
        out.
        """
        self._since, self._waited_before = time.perf_counter(), self.loader.waited

    def step(self) -> None:
        """A step, with the waiting for its batch, ends here, and the next one begins."""
        self.steps += 1
        now, waited = time.perf_counter(), self.loader.waited
        self.seconds += now - self._since
        self.waited += waited - self._waited_before
        self._since, self._waited_before = now, waited

    def add(self, other: Monitor | None) -> None:
        """Count in what another one has measured."""
        if other is not None:
            self.steps, self.seconds, self.waited = (
                self.steps + other.steps,
                self.seconds + other.seconds,
                self.waited + other.waited,
            )

    @property
    def share(self) -> float:
        """Of step time spent waiting, 0 to 1."""
        return self.waited / self.seconds if self.seconds else 0.0

    def metrics(self) -> dict[str, float]:
        """For a logger: the share, and milliseconds a step, waiting and in all."""
        steps = max(1, self.steps)
        return {
            "data/wait_share": self.share,
            "data/wait_ms": 1000 * self.waited / steps,
            "data/step_ms": 1000 * self.seconds / steps,
        }

    def summary(self) -> str:
        """In a line."""
        if not self.steps:
            return "waiting for data: no step was measured"
        each = 1000 * self.seconds / self.steps
        return (
            f"waiting for data: {self.share:.0%} of step time "
            f"({1000 * self.waited / self.steps:.1f} of {each:.1f} ms, over {self.steps:,} "
            "steps)"
        )
