"""What the tests train: a net so small that everything but the data costs nothing, and which writes
down what it saw.
"""

from typing import Any

import torch
from lightning.pytorch import LightningModule


class Seen(LightningModule):
    """Trains on dict batches with ids.

    trained, validated: the ids of each epoch, a list a batch.
    """

    def __init__(self, stop_at: int | None = None) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(27, 4))
        self.stop_at = stop_at
        self.trained: dict[int, list[list[int]]] = {}
        self.validated: list[list[int]] = []
        self.steps = 0

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> Any:
        self.trained.setdefault(self.current_epoch, []).append(batch["id"].tolist())
        self.steps += 1
        if self.steps == self.stop_at:
            raise RuntimeError("stopped by the test")
        return torch.nn.functional.cross_entropy(self.net(batch["image"]), batch["label"])

    def on_validation_epoch_start(self) -> None:
        self.validated.append([])

    def validation_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> None:
        self.validated[-1] += batch["id"].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)
