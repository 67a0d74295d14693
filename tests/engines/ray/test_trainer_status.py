"""`gpupipe status ray` shows the trainers of this machine, without Ray."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from gpupipe.cli.app import main
from gpupipe.engines.ray.trainer_status import (
    ObjectStore,
    StatusFile,
    TrainerStatus,
    WaitMeter,
    read_statuses,
)

STATUS = TrainerStatus(
    rank=1,
    world_size=2,
    workers=[("a (10.0.0.1)", 2), ("a (10.0.0.1)", 1), ("b (10.0.0.2)", 3)],
    target=4,
    tasks_out=6,
    window=10,
    batches=1234,
    wait_share=0.12,
    store=ObjectStore(used=1_200_000_000, size=8_000_000_000, spilled=0),
)


def printed(*words: str) -> str:
    result = CliRunner().invoke(main, ["status", "ray", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def wait_until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_status_is_shown_while_the_trainer_lives(cache: Path) -> None:
    file = StatusFile(lambda: STATUS)
    wait_until(read_statuses)
    text = printed()
    file.close()
    assert "rank 1 of 2" in text
    assert "3 of 4 workers on 2 nodes, 6 of 10 tasks out, 1,234 batches, waits 12%" in text
    assert "a (10.0.0.1): 2 workers, 3 tasks" in text
    assert "1.20 of 8.00 GB, 0.00 GB spilled" in text
    assert str(cache) in printed()
    assert not list((cache / "ray").iterdir())


def test_a_status_of_a_process_that_was_killed_is_removed(cache: Path) -> None:
    file = StatusFile(lambda: STATUS)
    wait_until(read_statuses)
    path = next((cache / "ray").iterdir())
    killed = json.loads(path.read_text()) | {"start_time": "1"}
    elsewhere = killed | {"host_id": "another machine", "written": time.time() - 30}
    file.close()
    (cache / "ray" / "killed.json").write_text(json.dumps(killed))
    (cache / "ray" / "elsewhere.json").write_text(json.dumps(elsewhere))
    assert re.search(r"silent for \d\d s", printed())
    assert [path.name for path in (cache / "ray").iterdir()] == ["elsewhere.json"]
    assert json.loads(printed("--json"))[0]["tasks_out"] == 6


def test_waiting_is_measured_apart_from_use() -> None:
    class Slow:
        def __iter__(self) -> Any:
            time.sleep(0.05)
            yield 1
            time.sleep(0.05)
            yield 2

    meter = WaitMeter()
    for _ in meter.measure(Slow()):
        time.sleep(0.1)
    assert meter.batches == 2
    assert meter.waited >= 0.1
    assert meter.used >= 0.2
    assert meter.wait_share == meter.waited / (meter.waited + meter.used)
