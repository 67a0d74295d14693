"""The laws of the design, held against the engine: same draws, every sample once, the same epoch by
every road, engines agree.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from helpers import forked_python
from helpers.full_product import IS_FULL
from helpers.loaders import loading
from helpers.reference import by_id, reference
from helpers.small_images import shrink_all

HEAVY = [
    "decode",
    {
        "random_affine": {
            "degrees": 20,
            "translate": [0.1, 0.1],
            "scale": [0.5, 2.0],
            "interpolation": "bilinear",
        }
    },
    {"random_resized_crop": {"size": 64}},
    "random_horizontal_flip",
    {"random_rotation": {"degrees": 10}},
    {"random_crop": {"size": 60}},
    {"random_vertical_flip": {"p": 0.3}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]


open_loader = loading(HEAVY, device="auto", batch_size=8, seed=7)
Open = Callable[..., gpupipe.Loader]
"""What `open_faces` is."""


@pytest.fixture(scope="module", params=["cpu", "dali"])
def engine(request: pytest.FixtureRequest) -> str:
    """The engine that holds the laws."""
    return str(request.param)


@pytest.fixture(scope="module")
def small_faces(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The 60 faces, of 96x96 pixels."""
    return shrink_all(faces, tmp_path_factory.mktemp("small-faces") / "faces", 96)


@pytest.fixture(scope="module")
def open_faces(small_faces: Path, engine: str) -> Open:
    """Opens a loader of small faces on the engine of the test."""

    def open_with(**options: Any) -> gpupipe.Loader:
        return open_loader(small_faces, engine=engine, **options)

    return open_with


@pytest.fixture(scope="module")
def alone(open_faces: Open) -> dict[int, torch.Tensor]:
    """Every image of epoch 0, by batches of one."""
    with open_faces(batch_size=1, threads=1) as loader:
        return by_id(loader)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 60},
        {"batch_size": 7, "threads": 3},
        {"batch_size": 13, "prefetch": 5},
        {"shuffle": False},
    ],
    ids=str,
)
def test_law_1_draws_do_not_depend_on_the_batch(
    open_faces: Open, alone: dict[int, torch.Tensor], options: dict[str, Any]
) -> None:
    with open_faces(**options) as loader:
        images = by_id(loader)
    assert images.keys() == alone.keys()
    assert all(torch.equal(images[i], alone[i]) for i in alone)


@pytest.mark.parametrize("world_size", [2, 3])
def test_laws_1_and_2_ranks_share_an_epoch_out(
    open_faces: Open, alone: dict[int, torch.Tensor], world_size: int
) -> None:
    images: dict[int, torch.Tensor] = {}
    steps = set()
    for rank in range(world_size):
        with open_faces(shard={"rank": rank, "world_size": world_size}) as loader:
            mine = by_id(loader)
            steps.add(len(loader))
        assert not mine.keys() & images.keys()
        images |= mine
    assert len(steps) == 1
    assert images.keys() == alone.keys()
    assert all(torch.equal(images[i], alone[i]) for i in alone)


def test_epochs_and_seeds_differ(open_faces: Open, alone: dict[int, torch.Tensor]) -> None:
    with open_faces() as loader:
        by_id(loader)
        second = by_id(loader)
    with open_faces(seed=8) as loader:
        other = by_id(loader)
    assert list(second) != list(alone)
    assert sum(torch.equal(second[i], alone[i]) for i in alone) == 0
    assert sum(torch.equal(other[i], alone[i]) for i in alone) == 0


def digest(loader: gpupipe.Loader) -> str:
    """The order, the labels and every bit of what a loader still delivers in its next epoch."""
    made = hashlib.sha256()
    for batch in loader:
        for name in ("id", "label", "image"):
            made.update(batch[name].numpy().tobytes())
    return made.hexdigest()


IN_A_NEW_PROCESS = """
import json, sys
from pathlib import Path
import test_laws
state, root, options = json.loads(sys.argv[1])
with test_laws.open_loader(Path(root), **options) as loader:
    loader.load_state_dict(state)
    print(test_laws.digest(loader))
"""


def test_an_epoch_is_the_same_by_every_road(
    open_faces: Open, small_faces: Path, engine: str
) -> None:
    with open_faces() as loader:
        by_iterating = [digest(loader) for _ in range(3)]
    with open_faces() as loader:
        loader.sampler.set_epoch(2)
        assert digest(loader) == by_iterating[2]
        loader.sampler.set_epoch(1)
        assert digest(loader) == by_iterating[1]
        assert digest(loader) == by_iterating[2]
    with open_faces() as loader:
        digest(loader)
        state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    assert in_new_process(state, small_faces, engine) == by_iterating[1]


@pytest.mark.parametrize("delivered", [1, 4, 7])
def test_the_rest_of_an_epoch_follows_a_state_bit_for_bit(
    open_faces: Open, small_faces: Path, engine: str, delivered: int
) -> None:
    with open_faces() as loader:
        loader.sampler.set_epoch(3)
        iterator = iter(loader)
        for _ in range(delivered):
            next(iterator)
        state = loader.state_dict()
        rest = hashlib.sha256()
        for batch in iterator:
            for name in ("id", "label", "image"):
                rest.update(batch[name].numpy().tobytes())
    assert json.loads(json.dumps(state)) == state
    assert in_new_process(state, small_faces, engine, prefetch=4, threads=1) == rest.hexdigest()


def in_new_process(state: dict[str, Any], root: Path, engine: str, **options: Any) -> str:
    argument = json.dumps([state, str(root), {"engine": engine, **options}])
    done = forked_python.run(["-c", IN_A_NEW_PROCESS, argument], cwd=Path(__file__).parent)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_state_of_other_data_pipeline_or_seed_is_refused_by_name(open_faces: Open) -> None:
    with open_faces() as loader:
        state = loader.state_dict()
        for key, word in [("data", "other data"), ("pipeline", "another pipeline")]:
            with pytest.raises(gpupipe.StateError, match=word):
                loader.load_state_dict({**state, key: "0" * 32})
        with pytest.raises(gpupipe.StateError, match=r"loader\.seed=99"):
            loader.load_state_dict({**state, "seed": 99})
        with pytest.raises(gpupipe.StateError, match="lacks 'epoch'"):
            loader.load_state_dict({k: v for k, v in state.items() if k != "epoch"})


@pytest.mark.parametrize("pipeline", ["affine", "affine_heavy", "imagenet_train", "imagenet_eval"])
def test_law_3_shipped_pipelines_agree_with_the_torch_lowering(
    photos: Path, engine: str, pipeline: str
) -> None:
    """The mean over all pixels of real photographs, in levels; a step's own test has its
    tolerance.
    """
    with gpupipe.load(
        {"data": {"source": "folder", "root": photos}, "pipeline": pipeline},
        batch_size=1,
        ids=True,
        engine=engine,
        subset=1.0 if IS_FULL else 0.3,
    ) as loader:
        scale = 255 * (0.229 if loader.config.pipeline.entries[-1].name == "normalize" else 1)
        off = [
            scale * float((image - reference(loader, 0, id)).abs().mean())
            for id, image in by_id(loader).items()
        ]
    assert len(off) > 12
    assert max(off) < 0.5
    assert np.mean(off) < 0.2


def hashes(batches: Iterable[Any]) -> dict[int, list[str]]:
    """The images of each sample, in the order in which they come."""
    found: dict[int, list[str]] = {}
    for batch in batches:
        for id, image in zip(batch["id"].tolist(), batch["image"].cpu(), strict=True):
            found.setdefault(id, []).append(hashlib.sha256(image.numpy().tobytes()).hexdigest())
    return found


TWICE: dict[str, Any] = {"repeats": 2, "epoch_size": "all"}


@pytest.fixture(scope="module")
def twice(open_faces: Open) -> dict[int, list[str]]:
    """Both images of every sample in epoch 0 with two repeats, by batches of one."""
    with open_faces(batch_size=1, threads=1, **TWICE) as loader:
        return hashes(loader)


def test_law_1_repeats_differ_and_the_first_is_that_of_no_repeats(
    open_faces: Open, alone: dict[int, torch.Tensor], twice: dict[int, list[str]]
) -> None:
    with open_faces(batch_size=13, prefetch=5, **TWICE) as loader:
        assert hashes(loader) == twice
    assert twice.keys() == alone.keys()
    assert all(len(set(images)) == len(images) == 2 for images in twice.values())
    plain = {i: hashlib.sha256(image.numpy().tobytes()).hexdigest() for i, image in alone.items()}
    assert {i: images[0] for i, images in twice.items()} == plain


@pytest.mark.parametrize("world_size", [2, 3])
def test_laws_1_and_2_ranks_share_the_repeats_out(
    open_faces: Open, twice: dict[int, list[str]], world_size: int
) -> None:
    found: dict[int, list[str]] = {}
    steps = set()
    for rank in range(world_size):
        with open_faces(shard={"rank": rank, "world_size": world_size}, **TWICE) as loader:
            mine = hashes(loader)
            steps.add(len(loader))
        assert max(map(len, mine.values())) == 1, "no rank gets both repeats of a sample"
        for id, images in mine.items():
            found.setdefault(id, []).extend(images)
    assert len(steps) == 1
    assert {i: set(images) for i, images in found.items()} == {
        i: set(images) for i, images in twice.items()
    }


def test_law_1_a_subset_keeps_the_draws_of_the_whole_set(
    open_faces: Open, alone: dict[int, torch.Tensor]
) -> None:
    with open_faces(subset=0.3) as loader:
        images = by_id(loader)
    assert 0 < len(images) < len(alone)
    assert all(torch.equal(images[i], alone[i]) for i in images)


@pytest.mark.parametrize(
    "options",
    [
        {"repeats": 3},
        {"weights": "class_balanced", "epoch_size": 75},
        {"subset": 0.5, "epoch_size": 45, "last_batch": "pad"},
    ],
    ids=str,
)
def test_any_epoch_resumes_bit_for_bit_in_another_process(
    open_faces: Open, small_faces: Path, engine: str, options: dict[str, Any]
) -> None:
    with open_faces(**options) as loader:
        loader.sampler.set_epoch(3)
        iterator = iter(loader)
        for _ in range(2):
            next(iterator)
        state = loader.state_dict()
        rest = hashlib.sha256()
        for batch in iterator:
            for name in ("id", "label", "image"):
                rest.update(batch[name].numpy().tobytes())
    assert json.loads(json.dumps(state)) == state
    assert in_new_process(state, small_faces, engine, **options) == rest.hexdigest()
    with open_faces() as other:
        for key, value in options.items():
            if key != "last_batch":
                changed = {k: v for k, v in state.items() if k not in options} | {key: value}
                with pytest.raises(gpupipe.StateError, match=f"the state was made with {key} "):
                    other.load_state_dict(changed)
