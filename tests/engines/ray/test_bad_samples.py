"""What the trainer sees of samples that a worker cannot read."""

import json
import shutil
from pathlib import Path

import pytest

from gpupipe.errors import SampleError, TooManyBadError
from helpers.loaders import load
from helpers.ray_batches import PIPELINE, batches, ray_options
from helpers.ray_cluster import RayCluster


@pytest.fixture
def broken(tmp_path: Path, faces: Path) -> tuple[Path, Path]:
    """A copy of the faces, and a file in it that is cut off."""
    root = tmp_path / "broken"
    shutil.copytree(faces, root)
    file = sorted(root.rglob("*.jpg"))[20]
    file.write_bytes(file.read_bytes()[:1000])
    return root, file


def test_a_corrupt_sample_is_the_same_error_and_names_the_node(
    cluster: RayCluster, broken: tuple[Path, Path]
) -> None:
    root, file = broken
    with load(root, PIPELINE, shuffle=False, **ray_options(2)) as loader:
        iterator = iter(loader)
        ids = []
        with pytest.raises(SampleError, match=r"cut off.*on node \S+ \(") as error:
            for batch in iterator:
                ids += batch["id"].tolist()
        assert ids == list(range(14)), "the batches before it were delivered"
        assert error.value.path == str(file)


def test_skipped_samples_are_listed_at_the_trainer(
    cluster: RayCluster, broken: tuple[Path, Path], tmp_path: Path
) -> None:
    root, file = broken
    options = {"on_error": "skip", "max_bad": 0.02, "quarantine": tmp_path / "bad.jsonl"}
    with load(root, PIPELINE, **ray_options(2), **options) as loader:
        for _ in range(2):
            ids = [id for batch in loader for id in batch["id"].tolist()]
            assert sorted(ids) == [n for n in range(60) if n != 20]
        assert len(loader.engine.quarantine) == 1
    (line,) = (tmp_path / "bad.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == str(file)
    options["max_bad"] = 0.01
    with (
        load(root, PIPELINE, **ray_options(1), **options) as loader,
        pytest.raises(TooManyBadError, match="1 of 60"),
    ):
        batches(loader)
