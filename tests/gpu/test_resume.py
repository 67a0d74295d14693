"""A resumed run on a GPU goes on with the very next batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gpupipe

OWN = {"dali": {"hw_decoder_load": 0.0}, "dataloader": {"workers": 2}}
"""Where all JPEGs go to one decoder, a run repeats to the bit."""


@pytest.mark.parametrize("engine", OWN)
def test_a_state_goes_on_bit_for_bit(faces: Path, engine: str) -> None:
    given = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": "affine",
        "loader": {"engine": engine, "device": "gpu", "batch_size": 7, **OWN[engine]},
    }
    with gpupipe.load(given, ids=True) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [b["image"].clone() for b in iterator]
    with gpupipe.load(given, ids=True) as loader:
        loader.load_state_dict(state)
        assert all(torch.equal(a, b["image"]) for a, b in zip(rest, loader, strict=True))
