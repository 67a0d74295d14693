"""Scripts of users around PipeDataModule: LightningCLI, and the package pytorch_lightning."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import forked_python
from helpers.full_product import IS_FULL

CLI = """
from lightning.pytorch.cli import LightningCLI
from gpupipe.lightning import PipeDataModule
from nets import Seen
defaults = dict(logger=False, enable_checkpointing=False, accelerator="cpu")
cli = LightningCLI(Seen, PipeDataModule, save_config_callback=None, trainer_defaults=defaults)
print({e: len(b) for e, b in cli.model.trained.items()})
"""

OTHER = """
import pytorch_lightning as pl
from gpupipe.lightning import PipeDataModule, DataWaitMonitor
assert issubclass(PipeDataModule, pl.LightningDataModule)
assert issubclass(DataWaitMonitor, pl.Callback)
import torch
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(27, 4))
    def training_step(self, batch, i):
        return torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer = pl.Trainer(accelerator="cpu", max_epochs=2, callbacks=[DataWaitMonitor()], **quiet)
trainer.fit(Net(), datamodule=PipeDataModule(train="small.yaml", val=None))
print(trainer.global_step)
"""


def python(code: str, folder: Path, *words: str) -> str:
    done = forked_python.run(["-c", code, *words], cwd=folder, env=environment())
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"PYTHONPATH": path}


@pytest.fixture
def small(config: dict[str, Any], tmp_path: Path) -> Path:
    import yaml

    (tmp_path / "small.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def test_lightning_cli(small: Path) -> None:
    words = [
        "fit",
        "--data.train",
        "small.yaml",
        "--data.val",
        "small.yaml",
        "--data.batch_size",
        "10",
        "--data.format",
        "dict",
        "--trainer.max_epochs",
        "2",
    ]
    assert "{0: 4, 1: 4}" in python(CLI, small, *words, "--data.allow_same_samples", "true")
    assert "Config of the training loader" in python(CLI, small, "fit", "--help")


@pytest.mark.skipif(not IS_FULL, reason="imports a framework: GPUPIPE_TEST_ALL=1")
def test_the_other_package(small: Path) -> None:
    command = [sys.executable, "-c", OTHER]  # a new Python: no other has imported `lightning`
    done = subprocess.run(
        command,
        cwd=small,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "16"  # 37 images in batches of 5
