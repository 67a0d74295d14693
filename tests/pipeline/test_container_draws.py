"""Draws inside containers: law 1."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gpupipe
from gpupipe.pipeline.build import build_pipeline
from gpupipe.pipeline.pipeline import Pipeline
from gpupipe.sampling import draws
from gpupipe.schema.document import Document
from helpers.arrays import ENGINES
from helpers.loaders import load
from helpers.reference import by_id

FLIP = {"random_horizontal_flip": {"p": 1}}


def pipeline(*steps: Any) -> Pipeline:
    return build_pipeline("p", Document("p", ["decode", *steps]))


def test_draws_come_from_lanes_of_the_container_in_order() -> None:
    """First its own, then those of each step."""
    steps = [{"random_affine": {"degrees": 5}}, "identity", "random_horizontal_flip"]
    entry = pipeline({"random_apply": {"transforms": steps}}).entries[1]
    ids = np.arange(50, dtype=np.int64)
    uniform = draws.uniform(3, 4, ids, draws.stream("random_apply"), 1 + 6 + 0 + 1)
    p = entry.parameters(3, 4, ids)
    assert (p["runs"] == (uniform[:, 0] < 0.5)).all()
    assert (p["0.angle"] == -5 + 10 * uniform[:, 1]).all()
    assert (p["2.flip"] == (uniform[:, 7] < 0.5)).all()


def test_draws_of_the_steps_before_containers_are_what_they_were() -> None:
    """Numbers of the first release: states and runs of it go on."""
    built = pipeline(
        {"random_resized_crop": {"size": 9}},
        "random_horizontal_flip",
        {"random_apply": {"transforms": [FLIP]}},
        {"random_affine": {"degrees": 5}},
    )
    crop, flip, _, affine = (
        entry.parameters(1, 2, np.arange(4, dtype=np.int64)) for entry in built.entries[1:]
    )
    np.testing.assert_allclose(crop["position"][:2], POSITIONS, rtol=1e-12)
    assert flip["flip"].tolist() == FLIPS
    np.testing.assert_allclose(affine["angle"], ANGLES, rtol=1e-12)


POSITIONS = [[0.3547489249385706, 0.5093220516560143], [0.3874222000594546, 0.42388510673860547]]
FLIPS = [1, 1, 0, 1]
ANGLES = [1.6243085249500062, 0.36980961732820994, 1.712432626127116, 4.9285466507523275]

STATEFUL = [
    "decode",
    {"random_choice": {"transforms": [FLIP, {"pad": {"padding": 4}}, "identity"]}},
    {"random_apply": {"transforms": [{"random_crop": {"size": [200, 210]}}]}},
    {"random_order": {"transforms": ["random_vertical_flip", {"pad": {"padding": [3, 0, 0, 0]}}]}},
    {"center_crop": {"size": 200}},
]


@pytest.fixture(scope="module")
def alone(faces: Path) -> dict[int, torch.Tensor]:
    """Every image of epoch 0, by batches of one."""
    with load(faces, STATEFUL, batch_size=1) as loader:
        return by_id(loader)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("batch_size", [7, 60])
def test_draws_do_not_depend_on_the_batch_or_engine(
    faces: Path, alone: dict[int, torch.Tensor], engine: str, batch_size: int
) -> None:
    with load(faces, STATEFUL, batch_size=batch_size, **ENGINES[engine]) as loader:
        images = by_id(loader)
    assert images.keys() == alone.keys()
    assert all(torch.equal(images[id], alone[id]) for id in alone)


@pytest.mark.parametrize("world_size", [2, 3])
def test_draws_do_not_depend_on_the_ranks(
    faces: Path, alone: dict[int, torch.Tensor], world_size: int
) -> None:
    images: dict[int, torch.Tensor] = {}
    for rank in range(world_size):
        shard = {"rank": rank, "world_size": world_size}
        with load(faces, STATEFUL, batch_size=5, shard=shard) as loader:
            images |= by_id(loader)
    assert images.keys() == alone.keys()
    assert all(torch.equal(images[id], alone[id]) for id in alone)


def test_a_resume_repeats_the_draws(faces: Path, alone: dict[int, torch.Tensor]) -> None:
    with load(faces, STATEFUL, batch_size=8) as loader:
        iterator = iter(loader)
        for _ in range(3):
            next(iterator)
        state = json.loads(json.dumps(loader.state_dict()))
    with load(faces, STATEFUL, batch_size=8) as loader:
        loader.load_state_dict(state)
        rest = by_id(loader)
    assert len(rest) == len(alone) - 24
    assert all(torch.equal(image, alone[id]) for id, image in rest.items())
    changed = json.loads(json.dumps(STATEFUL))
    changed[1]["random_choice"]["transforms"][1]["pad"]["padding"] = 5
    with (
        load(faces, changed, batch_size=8) as loader,
        pytest.raises(gpupipe.StateError, match="another pipeline"),
    ):
        loader.load_state_dict(state)
