"""The laws, held for a function of the user's that draws: on any engine, in any batch, on any rank,
after a resume, from a server and from Ray.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

import gpupipe
from helpers import served, user_functions
from helpers.full_product import IS_FULL
from helpers.loaders import ENGINES_AND_BATCHES, loading
from helpers.ray_cluster import RayCluster
from helpers.ray_cluster import cluster as cluster  # noqa: PLC0414  # a fixture
from helpers.reference import by_id
from helpers.small_images import shrink_all

STEPS: list[Any] = [
    "decode",
    {"python": {"call": "helpers.user_functions:stamp", "args": {"strength": 0.3}}},
    {"random_crop": {"size": 40}},
    {"python": {"call": "helpers.user_functions:stamp"}},
    "random_horizontal_flip",
]
GLOBALLY: list[Any] = [
    "decode",
    {"python": {"call": "helpers.user_functions:draws_of_all", "workers": 1}},
    {"random_crop": {"size": 40}},
]
load = loading(STEPS, seed=7, engine="cpu", batch_size=8)
Images = dict[int, torch.Tensor]
pytestmark = pytest.mark.usefixtures("forked_in_module")


@pytest.fixture(scope="module")
def root(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shrink_all(faces, tmp_path_factory.mktemp("laws-of-functions") / "faces", 48)


@pytest.fixture(scope="module")
def alone(root: Path) -> Images:
    """Every image of epoch 0 on the CPU engine, in batches of one."""
    with load(root, batch_size=1, threads=1) as loader:
        return by_id(loader)


def collate(samples: list[dict[str, Any]]) -> Any:
    return torch.utils.data.default_collate(samples)


def assert_equal(found: Images, expected: Images) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[id], expected[id]) for id in expected)


@pytest.mark.parametrize("options", ENGINES_AND_BATCHES, ids=str)
def test_draws_depend_neither_on_the_engine_nor_on_the_batch(
    root: Path, alone: Images, options: dict[str, Any]
) -> None:
    with load(root, **options) as loader:
        assert_equal(by_id(loader), alone)


@pytest.fixture(scope="module")
def drawn_globally(root: Path, forked_in_module: None) -> Images:
    """Every image of epoch 0, by a function that draws from global generators."""
    with load(root, GLOBALLY, batch_size=1, threads=1) as loader:
        images = by_id(loader)
        again = by_id(loader)
    assert not any(torch.equal(images[id], again[id]) for id in images)
    return images


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 60, "threads": 3},
        {"engine": "dali", "batch_size": 13},
        {"engine": "dataloader", "batch_size": 11, "workers": 2},
        {"engine": "dataloader", "batch_size": 11, "workers": 0},
    ],
    ids=str,
)
def test_with_workers_global_draws_depend_on_neither_of_them(
    root: Path, drawn_globally: Images, options: dict[str, Any]
) -> None:
    states = torch.get_rng_state(), random.getstate()
    with load(root, GLOBALLY, **options) as loader:
        assert_equal(by_id(loader), drawn_globally)
    if options.get("engine") != "dataloader":  # torch's DataLoader draws the seed of its workers
        assert torch.equal(torch.get_rng_state(), states[0]), "the trainer's draws are its own"
    assert random.getstate() == states[1]


def test_global_draws_on_ranks_and_after_a_resume(root: Path, drawn_globally: Images) -> None:
    every: Images = {}
    for rank in range(2):
        with load(root, GLOBALLY, shard={"rank": rank, "world_size": 2}) as loader:
            iterator = iter(loader)
            every |= by_id([next(iterator)])
            state = loader.state_dict()
        with load(root, GLOBALLY, shard={"rank": rank, "world_size": 2}) as loader:
            loader.load_state_dict(state)
            every |= by_id(loader)
    assert_equal(every, drawn_globally)


def test_ranks_share_an_epoch_out(root: Path, alone: Images) -> None:
    every: Images = {}
    for rank in range(3):
        with load(root, shard={"rank": rank, "world_size": 3}) as loader:
            every |= by_id(loader)
    assert_equal(every, alone)


def test_a_resumed_run_has_the_same_images(root: Path) -> None:
    with load(root) as loader:
        by_id(loader)
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = by_id(iterator)  # type: ignore[arg-type]
    with load(root, batch_size=5) as loader:
        loader.load_state_dict(state)
        assert_equal(by_id(loader), rest)


def test_a_server_delivers_the_same_images_to_a_client_without_the_module(
    root: Path, tmp_path: Path
) -> None:
    """Whether it draws from `rng` or globally; with a collate function of the client."""
    steps = [*GLOBALLY, STEPS[1], {"python": {"call": "only_on_the_server:invert"}}]
    with load(root, steps[:-1]) as loader_here:
        expected = by_id(loader_here)
    (tmp_path / "only_on_the_server.py").write_text("def invert(image):\n    return 255 - image\n")
    config = tmp_path / "serve.json"
    data = {"source": "folder", "root": str(root)}
    loader = {"seed": 7, "batch_size": 9, "engine": "cpu", "device": "cpu"}
    config.write_text(json.dumps({"data": data, "pipeline": steps, "loader": loader}))
    with (
        served.serving(str(config)) as server,  # type: ignore[arg-type]
        gpupipe.connect(server.address, ids=True, device="cpu", collate=collate) as connected,
    ):
        assert_equal({id: 255 - image for id, image in by_id(connected).items()}, expected)


@pytest.mark.skipif(not IS_FULL, reason="starts a Ray cluster: GPUPIPE_TEST_ALL=1")
def test_ray_delivers_the_same_images(root: Path, tmp_path: Path, cluster: RayCluster) -> None:
    """Its workers import the module that lies beside the file."""
    code = Path(user_functions.__file__).read_text()
    (tmp_path / "steps_for_ray.py").write_text(code)
    data = {"source": "folder", "root": str(root)}
    names = {"stamp": {}, "draws_of_all": {"workers": 1}}
    steps = [{"python": {"call": f"steps_for_ray:{name}", **more}} for name, more in names.items()]
    steps = ["decode", *steps]
    (tmp_path / "train.json").write_text(json.dumps({"data": data, "pipeline": steps}))
    options = {"batch_size": 9, "device": "cpu", "ids": True, "seed": 7}
    with gpupipe.load(tmp_path / "train.json", engine="cpu", **options) as loader:
        expected = by_id(loader)
    ray = {"workers": 2, "cpus": 1, "engine": "cpu"}
    with gpupipe.load(
        tmp_path / "train.json", engine="ray", ray=ray, collate=collate, **options
    ) as loader:
        assert_equal(by_id(loader), expected)
