"""A small net that learns whose face it is: LFW, or its stand-in, in Lightning.

python examples/lightning_lfw.py --max_epochs 2
python examples/lightning_lfw.py --max_epochs 4 --resume lightning_lfw/last.ckpt
"""

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from gpupipe.lightning import DataWaitMonitor, PipeDataModule


class Faces(LightningModule):
    def __init__(self, classes: int = 6000):
        super().__init__()
        blocks = [(3, 16), (16, 32), (32, 64)]
        layers = [
            [
                torch.nn.Conv2d(a, b, 3, stride=2, padding=1),
                torch.nn.BatchNorm2d(b),
                torch.nn.ReLU(),
            ]
            for a, b in blocks
        ]
        self.net = torch.nn.Sequential(
            torch.nn.AvgPool2d(4),
            *[layer for block in layers for layer in block],
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(64, classes),
        )

    def training_step(self, batch, batch_idx):
        image, label = batch
        loss = torch.nn.functional.cross_entropy(self.net(image), label)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("config", nargs="?", default="lfw")
parser.add_argument("--max_epochs", type=int, default=1)
parser.add_argument("--limit_train_batches", type=int)
parser.add_argument("--batch_size", type=int, default=64)
parser.add_argument("--folder", default="lightning_lfw")
parser.add_argument(
    "--resume", help="a checkpoint; in mid-epoch it goes on with the very next batch"
)
arguments = parser.parse_args()

trainer = Trainer(
    max_epochs=arguments.max_epochs,
    limit_train_batches=arguments.limit_train_batches,
    callbacks=[
        DataWaitMonitor(),
        ModelCheckpoint(arguments.folder, save_last=True, every_n_train_steps=5),
    ],
    logger=False,
    log_every_n_steps=1,
)
trainer.fit(
    Faces(),
    datamodule=PipeDataModule(train=arguments.config, batch_size=arguments.batch_size),
    ckpt_path=arguments.resume,
)
