"""A training loop without a framework: resume from a state, and how much of it was waiting for
data.

python examples/plain_torch.py lfw --epochs 2
python examples/plain_torch.py lfw --epochs 2        # again: goes on where it was interrupted
"""

import argparse
from pathlib import Path

import torch

import gpupipe

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("config", nargs="?", default="lfw")
parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--checkpoint", type=Path, default=Path("plain_torch.pt"))
arguments = parser.parse_intermixed_args()  # options among the overrides

with gpupipe.load(arguments.config, *arguments.overrides) as loader:
    device = loader.engine.device.replace("gpu", "cuda")
    net = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(16),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(len(loader.index.classes)),
    ).to(device)
    net(next(iter(loader))["image"])  # tells the lazy layer its size
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loader.sampler.set_epoch(0)
    if arguments.checkpoint.exists():
        kept = torch.load(arguments.checkpoint)
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        loader.load_state_dict(kept["loader"])
        print(f"resumed in epoch {loader.sampler.epoch}")

    monitor = gpupipe.Monitor(loader)
    loss = torch.zeros(())
    while loader.sampler.epoch < arguments.epochs:
        for step, batch in enumerate(monitor):
            loss = torch.nn.functional.cross_entropy(net(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                torch.save(
                    {
                        "net": net.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict(),
                    },
                    arguments.checkpoint,
                )
        print(f"epoch {loader.sampler.epoch - 1}: loss {loss.item():.3f}")
    arguments.checkpoint.unlink(missing_ok=True)
    print(monitor.summary())
