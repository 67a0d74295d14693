"""What `gpupipe cache status` counts."""

from __future__ import annotations

from typing import Any

import pytest

from gpupipe.cache import status
from helpers.cache_contents import began


def test_hit_rate_and_what_status_counts(make: Any) -> None:
    made = make()
    assert status.read_status(made.folder).hit_rate is None
    made.filler.publish_shard()
    began(made.folder)
    assert status.read_status(made.folder).hit_rate == 0.0
    made.filler.publish_shard()
    for _ in range(2):
        began(made.folder)
    found = status.read_status(made.folder)
    assert (
        found.generation,
        found.shards,
        found.samples,
        found.rows,
        found.epochs,
        found.requested,
    ) == (2, 2, 8, 40, 3, 20)
    assert found.hit_rate == pytest.approx(12 / 20)
    with (made.folder.dir / "epochs.jsonl").open("a") as f:
        f.write('{"generation": 2, "samp')
    assert status.read_status(made.folder).epochs == 3
