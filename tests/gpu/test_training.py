"""Training with Lightning on a GPU: the trainer's device is the loader's."""

from pathlib import Path
from typing import Any

import pytest
import torch

lightning = pytest.importorskip(
    "lightning.pytorch", reason="the tests of training need Lightning: pip install lightning"
)

from nets import Seen  # noqa: E402

from gpupipe.lightning import PipeDataModule  # noqa: E402
from helpers.either_device import DEVICE, TYPE  # noqa: E402


class OnGpu(Seen):
    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> Any:
        assert {t.device.type for t in batch.values()} == {TYPE}
        return super().training_step(batch, batch_idx)


@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)  # Lightning's
@pytest.mark.either_device
@pytest.mark.parametrize("engine", ["dali", "dataloader"])
def test_the_trainers_device_is_the_loaders(faces: Path, tmp_path: Path, engine: str) -> None:
    steps = [
        "decode",
        {"resize": {"size": [3, 3]}},
        {"to_dtype": {"dtype": "float32", "scale": True}},
    ]
    loader = {"workers": 2, "ids": True, "batch_size": 5}
    given = {"data": {"source": "folder", "root": str(faces)}, "pipeline": steps, "loader": loader}
    net, data = OnGpu(), PipeDataModule(train=given, format="dict", engine=engine)
    net.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(60))
    net.net(torch.zeros(1, 3, 3, 3))
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    lightning.Trainer(
        accelerator=DEVICE, devices=1, max_epochs=2, default_root_dir=tmp_path, **quiet
    ).fit(net, datamodule=data)
    assert [sorted(i for b in batches for i in b) for batches in net.trained.values()] == [
        list(range(60))
    ] * 2
