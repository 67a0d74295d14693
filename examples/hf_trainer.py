"""The Trainer of Hugging Face transformers, with gpupipe's loaders and a resume in mid-epoch.

python examples/hf_trainer.py lfw --epochs 2
python examples/hf_trainer.py lfw --epochs 2     # again: goes on at the last checkpoint

The Trainer asks for its loader in get_train_dataloader(). Its own way to resume skips the batches
that were seen before (`ignore_data_skip` turns it off); a gpupipe loader goes on from its state.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers.trainer_utils import get_last_checkpoint

import gpupipe

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("config", nargs="?", default="lfw")
parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--save-every", type=int, default=10, help="Steps between two checkpoints.")
parser.add_argument("--stop-after", type=int, default=0, help="Stop as if interrupted.")
parser.add_argument("--out", type=Path, default=Path("hf_trainer"))
arguments = parser.parse_intermixed_args()  # options may stand among the overrides


class Batches:
    """The batches of a loader, with the names that models of transformers have for them."""

    def __init__(self, loader: gpupipe.Loader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.loader:
            yield {"pixel_values": batch["image"], "labels": batch["label"]}


class LoaderState(transformers.TrainerCallback):
    """Saves the state of a loader in each checkpoint, and loads that of the last one."""

    def __init__(self, loader: gpupipe.Loader) -> None:
        self.loader = loader

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / "loader.json").write_text(json.dumps(self.loader.state_dict()))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            kept = json.loads((folder / "loader.json").read_text())
            self.loader.load_state_dict(kept)
            print(f"resumed in epoch {kept['epoch']} after {kept['position']} samples")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == arguments.stop_after:
            raise SystemExit(0)


class Trainer(transformers.Trainer):
    """A Trainer that takes its batches from a loader of gpupipe."""

    def __init__(self, loader: gpupipe.Loader, **kwargs: Any) -> None:
        super().__init__(callbacks=[LoaderState(loader)], **kwargs)
        self.loader = loader

    def get_train_dataloader(self) -> Any:
        return Batches(self.loader)


settings = transformers.TrainingArguments(
    output_dir=str(arguments.out),
    num_train_epochs=arguments.epochs,
    save_steps=arguments.save_every,
    ignore_data_skip=True,
    report_to=[],
    disable_tqdm=True,
    logging_steps=5,
)
device = str(settings.device)
with gpupipe.load(arguments.config, *arguments.overrides, device=device) as loader:
    shape = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    shape.num_labels = len(loader.index.classes)
    net = transformers.ResNetForImageClassification(shape)
    trainer = Trainer(loader, model=net, args=settings)
    last = get_last_checkpoint(str(arguments.out)) if arguments.out.exists() else None
    result = trainer.train(resume_from_checkpoint=last)
    print(f"{result.global_step} steps, loss {result.training_loss:.3f}")
