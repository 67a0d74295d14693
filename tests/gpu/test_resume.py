"""A resumed run on a GPU goes on with the very next batch."""

from pathlib import Path

import pytest
import torch

import gpupipe
from helpers.either_device import DEVICE

pytestmark = pytest.mark.either_device

OWN = {
    "dali": {"hw_decoder_load": 0.0},
    "dataloader": {"workers": 2 if DEVICE == "gpu" else 0},
}
"""Where all JPEGs go to one decoder, a run repeats to the bit."""


@pytest.mark.parametrize("engine", OWN)
def test_a_state_goes_on_bit_for_bit(faces: Path, engine: str) -> None:
    given = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": "affine",
        "loader": {"engine": engine, "device": DEVICE, "batch_size": 7, **OWN[engine]},
    }
    with gpupipe.load(given, ids=True) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [b["image"].clone() for b in iterator]
    with gpupipe.load(given, ids=True) as loader:
        loader.load_state_dict(state)
        assert all(torch.equal(a, b["image"]) for a, b in zip(rest, loader, strict=True))


@pytest.mark.parametrize("hw_decoder_load", [0.0, 0.9, 1.0] if DEVICE == "gpu" else [0.0])
def test_the_last_and_short_batch_of_an_epoch_alone_is_what_it_was(
    faces: Path, hw_decoder_load: float
) -> None:
    """It is the first that this decoder gets, but for a full one of which nothing is delivered."""
    given = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": "affine",
        "loader": {"engine": "dali", "batch_size": 7, "device": DEVICE},
    }
    with gpupipe.load(given, ids=True, hw_decoder_load=hw_decoder_load) as loader:
        found = [(b["id"].tolist(), b["image"].clone(), loader.state_dict()) for b in loader]
        last = found[-1]
        after = next(iter(loader))["id"].tolist()
    with gpupipe.load(given, ids=True, hw_decoder_load=hw_decoder_load) as loader:
        loader.load_state_dict(found[-2][2])
        rest = list(loader)
        assert [b["id"].tolist() for b in rest] == [last[0]]
        assert len(last[0]) < 7
        assert float((rest[0]["image"] - last[1]).abs().mean()) < 0.01, (
            "the two decoders differ by a level"
        )
        assert next(iter(loader))["id"].tolist() == after
        assert len(loader.engine.quarantine) == 0
