"""Ray Train: its workers are ranks, and its checkpoints hold the loader's position."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers import forked_python
from helpers.full_product import IS_FULL

SCRIPT = Path(__file__).with_name("ray_ranks.py")
COUNT, WORKERS, BATCH_SIZE, KILLED_AT = 37, 2, 5, 2
LIMIT = 900
pytestmark = pytest.mark.timeout(2 * LIMIT)


ENGINES: dict[str, dict[str, Any]] = {"dataloader": {}}
if IS_FULL:
    ENGINES["ray"] = {"engine": "ray", "ray": {"engine": "cpu", "workers": 1, "cpus": 1}}


@pytest.fixture(scope="module")
def trainings(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By engine, the folder of a training whose rank 1 was killed in mid-epoch.

    One Ray runs them, whose workers are forks.
    """
    folders = {}
    for name, changes in ENGINES.items():
        folder = folders[name] = tmp_path_factory.mktemp("ray-train")
        loader = config["loader"] | changes
        if name == "ray":
            del loader["workers"]  # a setting of the engine dataloader
        (folder / "small.yaml").write_text(yaml.safe_dump(config | {"loader": loader}))
    words = [word for folder in folders.values() for word in (folder / "small.yaml", folder)]
    done = forked_python.run(
        [SCRIPT, *words],
        env=os.environ | {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(LIMIT)},
        timeout=LIMIT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return folders


@pytest.fixture(params=ENGINES)
def training(trainings: dict[str, Path], request: pytest.FixtureRequest) -> Path:
    """The folder of a training whose rank 1 was killed in mid-epoch."""
    return trainings[request.param]


def test_each_sample_comes_once_over_a_killed_run_and_the_one_that_goes_on(training: Path) -> None:
    lines = [
        json.loads(line)
        for rank in range(WORKERS)
        for line in (training / f"rank{rank}").read_text().splitlines()
    ]
    assert (training / "killed").exists()
    before = [id for line in lines if not line["resumed"] for id in line["ids"]]
    after = [id for line in lines if line["resumed"] for id in line["ids"]]
    assert len(before) == KILLED_AT * WORKERS * BATCH_SIZE
    assert sorted(before + after) == list(range(COUNT))


def test_ray_train_alone_says_which_rank_a_worker_is(training: Path) -> None:
    facts = [json.loads((training / f"told{rank}").read_text()) for rank in range(WORKERS)]
    assert [fact["shard"] for fact in facts] == [[0, 2], [1, 2]]
    assert sorted(fact["here"] for fact in facts) == [[0, 2], [1, 2]]
