"""What is not a loader's to do: each refusal says what to do. And how a loader shows itself."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import gpupipe
from gpupipe import config as configs
from helpers.loaders import loading

STEPS = ["decode", {"random_crop": {"size": 60}}]


def config(root: Path) -> dict[str, Any]:
    return {"data": {"source": "folder", "root": root}, "pipeline": STEPS}


load = loading(STEPS, engine="dataloader", workers=0, batch_size=16)

NO_EPOCHS = [-1, 1.0, 0.5, True, np.bool_(True), "2", None, np.float32(2)]


@pytest.mark.parametrize("epoch", NO_EPOCHS, ids=repr)
def test_an_epoch_that_is_no_whole_number_from_0_on(faces: Path, epoch: Any) -> None:
    with load(faces) as loader:
        loader.sampler.set_epoch(3)
        with pytest.raises(gpupipe.ConfigError, match=r"set_epoch\(.*whole number from 0 on"):
            loader.sampler.set_epoch(epoch)
        assert loader.sampler.epoch == 3, "and stays where it was"


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.int32])
def test_an_epoch_of_numpys_is_as_good(faces: Path, kind: Callable[[int], Any]) -> None:
    with load(faces) as loader:
        loader.sampler.set_epoch(2)
        expected = next(iter(loader))["id"].tolist()
        loader.sampler.set_epoch(kind(2))
        assert type(loader.state_dict()["epoch"]) is int, "so that the state is plain JSON"
        assert next(iter(loader))["id"].tolist() == expected


NET = torch.nn.Linear(2, 2).state_dict()
KEPT = {"version": 1, "data": "x", "pipeline": "x", "seed": 0, "shuffle": True}
KEPT |= {"epoch": 0, "position": 0}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "and not None"),
        ([1, 2], "and not a list"),
        ("state.json", "and not a str"),
        ({}, "one that is empty: it lacks 'version'"),
        (NET, "one that has 'weight', 'bias': it lacks 'version'"),
        (KEPT | {"seed": torch.zeros(3)}, "whose 'seed' is tensor"),
        (KEPT | {"data": torch.zeros(3)}, "whose 'data' is tensor"),
        (KEPT | {"version": torch.zeros(3)}, "whose 'version' is tensor"),
        (KEPT | {"version": 7}, "another version of gpupipe: 7"),
    ],
    ids=lambda value: str(value)[:30],
)
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_state(faces: Path, state: Any, said: str, strict: bool) -> None:
    with load(faces) as loader:
        next(iter(loader))
        with pytest.raises(gpupipe.StateError, match=said):
            loader.load_state_dict(state, strict)
        assert loader.state_dict()["position"] == 16, "and the loader stands where it stood"


DTYPES = [torch.float16, "float16", np.float16, np.dtype("float16")]


@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_a_dtype_is_as_good_as_its_name(faces: Path, dtype: Any) -> None:
    floats = {"to_dtype": {"dtype": torch.float32, "scale": True}}
    with load(faces, pipeline=["decode", floats], dtype=dtype) as loader:
        assert next(iter(loader))["image"].dtype == torch.float16
    whole = config(faces) | {"pipeline": ["decode", floats], "loader": {"dtype": dtype}}
    assert configs.read(whole).loader.dtype == "float16"


def test_a_dtype_that_no_batch_can_have(faces: Path) -> None:
    with pytest.raises(gpupipe.ConfigError, match=r"loader\.dtype is 'complex64', but should be"):
        load(faces, dtype=torch.complex64)


@pytest.mark.parametrize("act", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("engine", ["dataloader", "cpu", "dali"])
def test_a_loader_is_not_pickled(faces: Path, act: Callable[[Any], Any], engine: str) -> None:
    with load(faces, engine=engine) as loader:
        with pytest.raises(gpupipe.UsageError, match=r"cannot be pickled.*state_dict\(\).*load"):
            act(loader)
        assert issubclass(gpupipe.UsageError, TypeError), "as pickle raises"
        assert len(list(loader)) == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_is_not_given_to_a_dataloader(faces: Path, workers: int) -> None:
    with (
        load(faces) as loader,
        pytest.raises(gpupipe.UsageError, match=r"is no data set.*in the place of DataLoader"),
    ):
        next(iter(DataLoader(loader, num_workers=workers)))  # type: ignore[arg-type]


def test_how_a_loader_shows_itself(faces: Path) -> None:
    loader = load(faces)
    batches = iter(loader)
    next(batches)
    classes = len(loader.index.classes)
    assert repr(loader).splitlines() == [
        f"<gpupipe.Loader config: 60 samples in {classes} classes (stand-in data, not LFW)>",
        "  batches:   4 an epoch, of up to 16 samples",
        "  pipeline:  inline (decode, random_crop)",
        "  engine:    dataloader on cpu, 0 workers",
        "  position:  epoch 0, 16 of 60 samples delivered",
    ]
    list(batches)
    assert repr(loader).endswith("position:  epoch 1, 0 of 60 samples delivered")
    loader.close()
    assert "(closed)>" in repr(loader)
    with load(faces, shard={"rank": 1, "world_size": 3}) as third:
        assert "2 an epoch, of up to 16 samples, rank 1 of 3" in repr(third)


def test_how_an_index_shows_itself(faces: Path) -> None:
    with load(faces) as loader:
        index = loader.index
    samples = f"60 samples in {len(index.classes)} classes (stand-in data, not LFW)"
    assert repr(index) == f"<Index of {faces.resolve()}: {samples}, image>"
    part = repr(index.subset(np.array([3, 5])))
    assert "2 samples in" in part
    assert "(stand-in data, not LFW)" in part
