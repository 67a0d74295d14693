"""Ray Train: each worker gets its part of every batch, and checkpoints hold the loader's position.

python examples/ray_train.py lfw --epochs 2
python examples/ray_train.py lfw --epochs 2          # again: goes on where it was interrupted
python examples/ray_train.py lfw engine=ray          # batches from actors anywhere in the cluster
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig

import gpupipe

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("config", nargs="?", default="lfw")
parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--workers", type=int, default=2, help="processes that train")
parser.add_argument("--gpu", action="store_true", help="one GPU for each of them")
parser.add_argument("--storage", type=Path, default=Path("ray_train"), help="for checkpoints")
parser.add_argument("--every", type=int, default=5, help="steps between two checkpoints")


def train(settings: dict[str, Any]) -> None:
    """Train on one worker."""
    arguments = argparse.Namespace(**settings)
    with gpupipe.load(arguments.config, *arguments.overrides) as loader:  # this worker's part
        device = ray.train.torch.get_device()
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.AdaptiveAvgPool2d(16),
            torch.nn.Flatten(),
            torch.nn.Linear(3 * 16 * 16, count_classes(loader)),
        )
        model = ray.train.torch.prepare_model(net)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        checkpoint = ray.train.get_checkpoint()
        if checkpoint:
            with checkpoint.as_directory() as folder:
                kept = torch.load(Path(folder) / "kept.pt", map_location=device)
            net.load_state_dict(kept["net"])
            optimizer.load_state_dict(kept["optimizer"])
            loader.load_state_dict(kept["loader"])  # of rank 0, and right for all
            print(f"resumed in epoch {loader.sampler.epoch}, sample {loader.sampler.position}")
        while loader.sampler.epoch < arguments.epochs:
            epoch, steps = loader.sampler.epoch, loader.sampler.left
            for step, batch in enumerate(loader, 1):
                loss = torch.nn.functional.cross_entropy(
                    model(batch["image"].to(device)), batch["label"].to(device)
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                # All workers have equally many steps, so all of them report at the same ones.
                if step % arguments.every == 0 or step == steps:
                    report(epoch, loss, net, optimizer, loader)


def count_classes(loader: gpupipe.Loader) -> int:
    """Return the number of classes.

    The word `classes` must not be in a function of this script that uses torch: to send it to the
    workers, Ray would pickle torch.classes, and fail.
    """
    return len(loader.index.classes)


def report(
    epoch: int,
    loss: torch.Tensor,
    net: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: gpupipe.Loader,
) -> None:
    """Report the loss; on rank 0, with a checkpoint."""
    metrics = {"epoch": epoch, "loss": loss.item(), "position": loader.state_dict()["position"]}
    if ray.train.get_context().get_world_rank() != 0:
        ray.train.report(metrics)
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = {
            "net": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),
        }
        torch.save(kept, Path(folder) / "kept.pt")
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


if __name__ == "__main__":
    arguments = parser.parse_intermixed_args()  # options among the overrides
    if Path(arguments.config).exists():
        arguments.config = str(Path(arguments.config).resolve())  # workers run in other folders
    trainer = ray.train.torch.TorchTrainer(
        train,
        train_loop_config=vars(arguments),
        scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=arguments.gpu),
        run_config=RunConfig(
            name=Path(arguments.config).stem, storage_path=str(arguments.storage.resolve())
        ),
    )
    result = trainer.fit()
    metrics = result.metrics or {}
    print(f"epoch {metrics['epoch']}: loss {metrics['loss']:.3f}")
