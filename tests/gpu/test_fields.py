"""Samples of several fields on a GPU."""

from pathlib import Path

import pytest
import torch

from helpers.either_device import DEVICE, TYPE
from helpers.many_fields import COUNT, loaded, make, samples

pytestmark = pytest.mark.either_device


def test_all_fields_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make(tmp_path, monkeypatch)
    one, other = samples(loaded(data, device=DEVICE)), samples(loaded(data, device="cpu"))
    assert sorted(one) == sorted(other) == list(range(COUNT))
    for id, sample in one.items():
        assert {t.device.type for t in sample.values()} == {TYPE}
        for name in ("depth", "weight", "box", "label"):
            assert torch.equal(sample[name].cpu(), other[id][name])
        assert set(sample["mask"].unique().tolist()) <= {0, 100, 200}
        assert (sample["mask"].cpu() != other[id]["mask"]).float().mean() < 0.02
