"""`workers: [min, max]`: follows the share of its time that the trainer waits for data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("gpupipe")
MORE_ABOVE = 0.05
FEWER_BELOW = 0.01
PERIOD = 10.0
"""Seconds of training after which the number of workers is decided again."""


class Resizable(Protocol):
    """A pool of workers."""

    @property
    def target(self) -> int:
        """How many workers there should be."""

    @property
    def is_settled(self) -> bool:
        """Whether as many are ready."""

    def resize(self, count: int) -> None:
        """Change the number of workers."""


class Autoscaler:
    """Adds a worker while the trainer waits in over 5 % of its time, removes one under 1 %.

    The time between epochs does not count, and neither does the time until a new worker is ready.

    Args:
        pool: The workers.
        smallest: The smallest number of workers.
        largest: The largest number of workers.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        pool: Resizable,
        smallest: int,
        largest: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool, self._smallest, self._largest, self._clock = pool, smallest, largest, clock
        self._since: float | None = None
        self._seconds = self._waited = 0.0

    def start(self) -> None:
        """Start the first step of an iteration or an epoch."""
        self._since = None

    def step(self, waited: float) -> None:
        """End a step of the trainer.

        Args:
            waited: How many seconds of it the trainer waited for its batch.
        """
        now, since = self._clock(), self._since
        self._since = now
        if since is None:
            return
        if not self._pool.is_settled:
            self._seconds = self._waited = 0.0
            return
        self._seconds += now - since
        self._waited += waited
        if self._seconds >= PERIOD:
            self._decide(self._waited / self._seconds)
            self._seconds = self._waited = 0.0

    def _decide(self, share: float) -> None:
        count = self._pool.target
        wanted = count + (share > MORE_ABOVE) - (share < FEWER_BELOW)
        wanted = min(self._largest, max(self._smallest, wanted))
        if wanted != count:
            _log.warning(
                "gpupipe: the trainer waits for data in %.1f %% of its time: %d instead of %d Ray "
                "workers",
                100 * share,
                wanted,
                count,
            )
            self._pool.resize(wanted)
