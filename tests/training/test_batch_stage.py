"""Training on mixed batches: under Lightning's Trainer, and with torchrun's ranks, whose run is
killed and resumed.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import ModelCheckpoint
from test_ranks import ranks

import gpupipe
from gpupipe.lightning import PipeDataModule
from test_lightning import pytestmark, trainer  # noqa: F401  # what Lightning's warnings are

MIXING = [{"random_choice": {"transforms": [{"mixup": {"alpha": 0.4}}, "cutmix"]}}]
Batch = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def mixing(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"batch": MIXING}


class Kept(LightningModule):
    """Keeps the batches that it trains and validates on."""

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(27, 4))
        self.stop_at = stop_at
        self.trained: list[Batch] = []
        self.validated: list[Batch] = []

    def training_step(self, batch: Batch, batch_idx: int) -> Any:
        if len(self.trained) == self.stop_at:
            raise RuntimeError("stopped by the test")
        image, label = batch
        self.trained.append((image.clone(), label.clone()))
        return torch.nn.functional.cross_entropy(self.net(image), label)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.validated.append(batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def same(found: list[Batch], expected: list[Batch]) -> bool:
    """Whether batches are equal to the bit."""
    return len(found) == len(expected) and all(
        torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])
        for a, b in zip(found, expected, strict=True)
    )


def fit(config: dict[str, Any], folder: Path, net: Kept, **options: Any) -> None:
    data = PipeDataModule(
        train=config, val=config, val_overrides={"batch": []}, allow_same_samples=True
    )
    kept = options.pop("ckpt_path", None)
    trainer(folder, max_epochs=2, **options).fit(net, datamodule=data, ckpt_path=kept)


def test_lightning_trains_on_soft_labels_and_resumes_in_mid_epoch(
    mixing: dict[str, Any], tmp_path: Path
) -> None:
    with gpupipe.load(mixing, device="cpu", format="tuple") as loader:
        expected = [(a.clone(), b.clone()) for _ in range(2) for a, b in loader]
    whole, broken, resumed = Kept(), Kept(stop_at=12), Kept()
    fit(mixing, tmp_path, whole)
    assert same(whole.trained, expected)
    assert whole.trained[0][1].shape == (5, 4)
    assert {label.dtype for _, label in whole.validated} == {torch.int64}, "its config has none"
    saving = ModelCheckpoint(tmp_path, every_n_train_steps=11, save_top_k=-1, filename="{step}")
    with pytest.raises(RuntimeError, match="stopped by the test"):
        fit(mixing, tmp_path, broken, callbacks=[saving], enable_checkpointing=True)
    fit(mixing, tmp_path, resumed, ckpt_path=tmp_path / "step=11.ckpt")
    assert same(resumed.trained, expected[11:])


def test_ranks_that_are_killed_go_on_with_the_same_mixes(
    mixing: dict[str, Any], tmp_path: Path
) -> None:
    """The weights at the end are those of a run that was never killed, to the bit."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(mixing))
    whole = ranks(tmp_path, 2, "--epochs", "2", into="whole")
    ranks(tmp_path, 2, "--epochs", "2", "--kill", "5", into="broken", code=1)
    kept = tmp_path / "broken" / "kept.pt"
    found = ranks(tmp_path, 2, "--epochs", "2", "--resume", str(kept), into="same")
    assert found == [rank[4:] for rank in whole]
    ours, theirs = (torch.load(tmp_path / run / "net.pt") for run in ("same", "whole"))
    assert all(torch.equal(ours[k], theirs[k]) for k in theirs)
