"""The laws, held for a data set of the user's own: on any engine, in any batch, on any rank, after
a resume, from a server and from Ray.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers import served, user_datasets
from helpers.full_product import IS_FULL
from helpers.loaders import ENGINES_AND_BATCHES
from helpers.ray_cluster import RayCluster
from helpers.ray_cluster import cluster as cluster  # noqa: PLC0414  # a fixture
from helpers.small_images import shrink_all
from helpers.user_datasets import Faces

STEPS: list[Any] = ["decode", {"random_crop": {"size": 40}}, "random_horizontal_flip"]
Samples = dict[int, tuple[torch.Tensor, int]]


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("laws-of-datasets") / "faces", 48)


def load(dataset: Any, **options: Any) -> gpupipe.Loader:
    settings = {"seed": 7, "engine": "cpu", "batch_size": 8, "device": "cpu", "ids": True}
    return gpupipe.load(dataset, pipeline=STEPS, **settings | options)


def read(batches: Any) -> Samples:
    """The images and labels of an epoch, by id."""
    samples: Samples = {}
    for batch in batches:
        for n, id in enumerate(batch["id"].tolist()):
            assert id not in samples
            samples[id] = batch["image"][n], int(batch["label"][n])
    return samples


@pytest.fixture(scope="module")
def alone(root: Path) -> Samples:
    """Every sample of epoch 0 on the CPU engine, in batches of one."""
    with load(Faces(root), batch_size=1, threads=1) as loader:
        return read(loader)


def assert_equal(found: Samples, expected: Samples) -> None:
    assert found.keys() == expected.keys()
    for id, (image, label) in expected.items():
        assert torch.equal(found[id][0], image)
        assert found[id][1] == label == id % 7


@pytest.mark.parametrize("options", ENGINES_AND_BATCHES, ids=str)
def test_a_sample_depends_neither_on_the_engine_nor_on_the_batch(
    root: Path, alone: Samples, options: dict[str, Any]
) -> None:
    with load(Faces(root), **options) as loader:
        assert_equal(read(loader), alone)


def test_pixels_and_bytes_have_the_same_draws(root: Path, alone: Samples) -> None:
    with load(Faces(root, "pillow")) as loader:
        assert_equal(read(loader), alone)


def test_ranks_share_an_epoch_out(root: Path, alone: Samples) -> None:
    every: Samples = {}
    for rank in range(3):
        with load(Faces(root), shard={"rank": rank, "world_size": 3}) as loader:
            every |= read(loader)
    assert_equal(every, alone)


def test_a_run_resumes_and_other_data_is_refused(root: Path) -> None:
    with load(Faces(root)) as loader:
        read(loader)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = read(iterator)
    with load(Faces(root), batch_size=5) as loader:
        loader.load_state_dict(state)
        assert_equal(read(loader), rest)
    with (
        load(torch.utils.data.Subset(Faces(root), range(50))) as loader,
        pytest.raises(gpupipe.StateError, match="other data"),
    ):
        loader.load_state_dict(state)
    other = Faces(root)
    other.paths.reverse()
    with load(other) as loader, pytest.raises(gpupipe.StateError, match=r"other data.*Faces\["):
        loader.load_state_dict(state)


@pytest.fixture(scope="module")
def config(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config with a data set in a module beside it."""
    tmp_path = tmp_path_factory.mktemp("beside")
    code = Path(user_datasets.__file__).read_text()
    (tmp_path / "datasets_beside.py").write_text(code)
    data = {"source": "python", "call": "datasets_beside:Faces", "args": {"root": str(root)}}
    loader = {"seed": 7, "batch_size": 9, "engine": "cpu", "device": "cpu", "ids": True}
    path = tmp_path / "train.json"
    path.write_text(json.dumps({"data": data, "pipeline": STEPS, "loader": loader}))
    return path


def test_a_server_delivers_the_same_samples(config: Path, alone: Samples) -> None:
    with (
        served.serving(str(config)) as server,  # type: ignore[arg-type]
        gpupipe.connect(server.address, ids=True, device="cpu") as connected,
    ):
        assert_equal(read(connected), alone)


@pytest.mark.skipif(not IS_FULL, reason="starts a Ray cluster: GPUPIPE_TEST_ALL=1")
def test_ray_delivers_the_same_samples(
    config: Path, root: Path, alone: Samples, cluster: RayCluster
) -> None:
    """Its workers import the module that lies beside the file; an object they cannot have."""
    ray = {"workers": 2, "cpus": 1, "engine": "cpu"}
    with gpupipe.load(config, engine="ray", ray=ray) as loader:
        assert_equal(read(loader), alone)
    with pytest.raises(gpupipe.ConfigError, match=r"Faces is an object.*'call': 'module:"):
        load(Faces(root), engine="ray", ray=ray)
