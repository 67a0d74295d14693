"""`gpupipe status ray` shows the trainers of this machine, and Ray's own counters."""

import json
import re
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpupipe.cli.app import main
from gpupipe.engines.ray import status
from gpupipe.engines.ray.status import ObjectStore, StatusFile, TrainerStatus, read_statuses
from helpers.loaders import load
from helpers.ray_batches import PIPELINE, ray_options
from helpers.ray_cluster import RayCluster, wait_until

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


class Trainer:
    """Something whose status is always the same."""

    def describe(self) -> TrainerStatus:
        return STATUS


def printed(*words: str) -> str:
    result = CliRunner().invoke(main, ["status", "ray", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_status_is_shown_while_the_trainer_lives(cache: Path) -> None:
    trainer = Trainer()
    file = StatusFile(trainer.describe)
    wait_until(read_statuses, "the file does not come")
    text = printed()
    file.close()
    assert "rank 1 of 2" in text
    assert "3 of 4 workers on 2 nodes, 6 of 10 tasks out, 1,234 batches, waits 12%" in text
    assert "a (10.0.0.1): 2 workers, 3 tasks" in text
    assert "1.20 of 8.00 GB, 0.00 GB spilled" in text
    assert str(cache) in printed()
    assert not list((cache / "ray").iterdir())


def test_the_file_of_a_trainer_that_was_dropped_is_removed(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_SECONDS", 0.01)
    trainer = Trainer()
    file = StatusFile(trainer.describe)
    wait_until(read_statuses, "the file does not come")
    del trainer
    wait_until(lambda: not list((cache / "ray").iterdir()), "the file stays")
    file.close()


def test_a_status_of_a_process_that_was_killed_is_removed(cache: Path) -> None:
    trainer = Trainer()
    file = StatusFile(trainer.describe)
    wait_until(read_statuses, "the file does not come")
    path = next((cache / "ray").iterdir())
    killed = json.loads(path.read_text()) | {"start_time": "1"}
    elsewhere = killed | {"host_id": "another machine", "written": time.time() - 30}
    file.close()
    (cache / "ray" / "killed.json").write_text(json.dumps(killed))
    (cache / "ray" / "elsewhere.json").write_text(json.dumps(elsewhere))
    assert re.search(r"silent for \d\d s", printed())
    assert [path.name for path in (cache / "ray").iterdir()] == ["elsewhere.json"]
    assert json.loads(printed("--json", "-"))[0]["tasks_out"] == 6


def test_a_trainer_is_shown_with_the_object_store_and_without_grpcio_too(
    cluster: RayCluster, faces: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "_STORE_SECONDS", 0.0)
    with load(faces, PIPELINE, **ray_options(1)) as loader:
        next(iter(loader))
        wait_until(lambda: any(each["store"] for each in read_statuses()), "the object store")
        text = CliRunner().invoke(main, ["status", "ray"]).output
        assert "1 of 1 worker on 1 node" in text
        assert "0.00 GB spilled" in text
        with monkeypatch.context() as patch:  # Ray's counters are asked after the test too
            patch.setitem(sys.modules, "grpc", None)
            patch.delitem(sys.modules, "ray._private.grpc_utils")
            wait_until(lambda: not read_statuses()[0]["store"], "a status without counters")
            text = CliRunner().invoke(main, ["status", "ray"]).output
            assert "1 of 1 worker on 1 node" in text
            assert "spilled" not in text
