"""Lightning; see examples/lightning_lfw.py for checkpoints in mid-epoch.

python examples/loops/lightning_loop.py FOLDER_OF_CLASS_FOLDERS
"""

import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer

import gpupipe


class Net(LightningModule):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, classes))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch["image"]), batch["label"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


pairs = [(path, path.parent.name) for path in sorted(Path(sys.argv[1]).glob("*/*.jpg"))]
steps = [
    "decode",
    {"resize": {"size": [16, 16]}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
trainer = Trainer(max_epochs=1, logger=False, enable_checkpointing=False)
device = str(trainer.strategy.root_device)
with gpupipe.load(pairs, pipeline=steps, batch_size=16, device=device) as loader:
    trainer.fit(Net(len(loader.index.classes)), loader)
    print(f"{trainer.global_step} steps")
