"""One of the random schedules of disasters that tests/ray_schedules.py draws: workers are killed
and paused, and a node is removed and added. Fifty take a quarter of an hour.
"""

from collections import Counter
from pathlib import Path

from helpers.ray_cluster import RayCluster
from ray_schedules import Schedule, run_schedule

SEED = 29


def test_disasters_change_no_bit_and_leave_nothing(cluster: RayCluster, faces: Path) -> None:
    counts: Counter[str] = Counter()
    run_schedule(Schedule.draw(SEED), cluster, faces, counts)
    assert counts["batches"] > 0
    assert counts["repeated tasks"] > 0, "workers had tasks when they were hit"
