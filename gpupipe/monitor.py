"""Monitor measures how long a training loop waits for data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from gpupipe.loader import Loader


class Monitor:
    """Measures how long a training loop waits for the batches of a loader.

    Iterate over the monitor, or iterate over the loader and call `step()` after every training
    step. Iterating over the monitor leaves out the time between epochs, such as validation.

    The monitor measures how long the loop blocks until it gets a batch. It does not see how long a
    GPU is idle: kernels run asynchronously, and a GPU may still work while the loop waits.

    Attributes:
        loader: The loader that the monitor measures.
        steps: Number of steps measured.
        seconds: Duration of all steps, including the waiting.
        waited: Seconds of that spent waiting for batches.

    Example:
        >>> monitor = gpupipe.Monitor(loader)
        >>> for batch in monitor:
        ...     train(batch)
        >>> print(monitor.summary())
        waiting for data: 31% of step time (10.4 of 33.5 ms, over 1,000 steps)
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.steps = 0
        self.seconds = 0.0
        self.waited = 0.0
        self.resume()

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.resume()
        for batch in self.loader:
            yield batch
            self.step()

    def resume(self) -> None:
        """Start the next step now, and leave out the time since the end of the last one."""
        self._since, self._waited_before = time.perf_counter(), self.loader.waited

    def step(self) -> None:
        """End the current step, which includes the waiting for its batch, and start the next."""
        self.steps += 1
        now, waited = time.perf_counter(), self.loader.waited
        self.seconds += now - self._since
        self.waited += waited - self._waited_before
        self._since, self._waited_before = now, waited

    def add(self, other: Monitor | None) -> None:
        """Add the steps and times of another monitor; None adds nothing."""
        if other is not None:
            self.steps, self.seconds, self.waited = (
                self.steps + other.steps,
                self.seconds + other.seconds,
                self.waited + other.waited,
            )

    @property
    def share(self) -> float:
        """Share of the step time that was spent waiting, 0 to 1; 0 if no step was measured."""
        return self.waited / self.seconds if self.seconds else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the measurements for a logger.

        Returns:
            "data/wait_share": the share, 0 to 1; "data/wait_ms" and "data/step_ms": the mean
            waiting and the mean duration of a step, in milliseconds.
        """
        steps = max(1, self.steps)
        return {
            "data/wait_share": self.share,
            "data/wait_ms": 1000 * self.waited / steps,
            "data/step_ms": 1000 * self.seconds / steps,
        }

    def summary(self) -> str:
        """Return the measurements as one line of text."""
        if not self.steps:
            return "waiting for data: no step was measured"
        each = 1000 * self.seconds / self.steps
        return (
            f"waiting for data: {self.share:.0%} of step time "
            f"({1000 * self.waited / self.steps:.1f} of {each:.1f} ms, over {self.steps:,} "
            "steps)"
        )
