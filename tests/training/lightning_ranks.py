"""A run of Lightning's Trainer on several ranks, started by test_ranks.py: writes each rank's ids,
a JSON line a batch.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from nets import Seen

from gpupipe.lightning import PipeDataModule


class Writes(Seen):
    folder = Path()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Any:
        with (self.folder / f"rank{self.global_rank}.jsonl").open("a") as out:
            threads = self.trainer.train_dataloader.threads
            out.write(
                json.dumps(
                    {"epoch": self.current_epoch, "ids": batch["id"].tolist(), "threads": threads}
                )
                + "\n"
            )
        return super().training_step(batch, batch_idx)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--resume")
    parser.add_argument("--batch-size", type=int, default=3)
    arguments = parser.parse_args()
    net = Writes()
    net.folder = arguments.folder
    saving = ModelCheckpoint(
        arguments.folder, every_n_train_steps=4, save_top_k=-1, filename="{step}"
    )
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = Trainer(
        accelerator="cpu",
        devices=arguments.devices,
        strategy="ddp",
        max_epochs=2,
        callbacks=[saving],
        **quiet,
    )
    data = PipeDataModule(train=arguments.config, format="dict", batch_size=arguments.batch_size)
    trainer.fit(net, datamodule=data, ckpt_path=arguments.resume)


if __name__ == "__main__":
    main()
