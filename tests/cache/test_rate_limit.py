"""A rate limit of all processes together."""

from __future__ import annotations

import time
from pathlib import Path

from gpupipe.cache.rate_limit import RateLimit


def test_a_rate_limit_is_of_all_workers_together(tmp_path: Path) -> None:
    waits: list[float] = []
    first, second = (RateLimit(tmp_path / "rate", 1000, waits.append) for _ in range(2))
    started = time.time()
    for rate in (first, second, first, second):
        rate.take(1000)
    behind = time.time() - started
    assert all(n + 0.5 - behind <= wait <= n + 0.5 + 0.01 for n, wait in enumerate(waits))
    RateLimit(tmp_path / "other", None, waits.append).take(10**12)
    assert len(waits) == 4
