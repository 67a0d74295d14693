"""Training on a GPU: the trainer's device is the loader's, and a resumed run goes on with the very next batch there too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from nets import Seen

import gpupipe
from gpupipe.lightning import PipeDataModule

pytestmark = pytest.mark.gpu


class OnGpu(Seen):
    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> Any:
        assert {t.device.type for t in batch.values()} == {"cuda"}
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_the_trainers_device_is_the_loaders(config: dict[str, Any], faces: Path, tmp_path: Path, engine: str) -> None:
    steps = ["decode", {"resize": {"size": [3, 3]}}, {"to_dtype": {"dtype": "float32", "scale": True}}]
    given = config | {"data": {"source": "folder", "root": str(faces)}, "pipeline": steps}
    net, data = OnGpu(), PipeDataModule(train=given, format="dict", engine=engine)
    net.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(60))
    net.net(torch.zeros(1, 3, 3, 3))
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    Trainer(accelerator="gpu", devices=1, max_epochs=2, default_root_dir=tmp_path, **quiet).fit(net, datamodule=data)
    assert [sorted(i for b in batches for i in b) for batches in net.trained.values()] == [list(range(60))] * 2


@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_a_state_goes_on_bit_for_bit(faces: Path, engine: str) -> None:
    given = {
        "data": {"source": "folder", "root": str(faces)},
        "pipeline": "affine",
        "loader": {"engine": engine, "device": "gpu", "batch_size": 7, "workers": 2},
    }
    with gpupipe.load(given, ids=True) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = [b["image"].clone() for b in iterator]
    with gpupipe.load(given, ids=True) as loader:
        loader.load_state_dict(state)
        assert all(torch.equal(a, b["image"]) for a, b in zip(rest, loader, strict=True))
