"""Distributed data parallel: each rank gets its part of every batch, without a word about it in the
config.

torchrun --nproc-per-node 2 examples/torch_ddp.py lfw --epochs 1
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gpupipe

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("config", nargs="?", default="lfw")
parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
parser.add_argument("--epochs", type=int, default=1)
arguments = parser.parse_intermixed_args()  # options among the overrides

dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
with gpupipe.load(
    arguments.config, *arguments.overrides
) as loader:  # shard: auto, device: auto: this rank's, on the GPU of LOCAL_RANK
    device = torch.device(loader.engine.device.replace("gpu", "cuda"))
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(16),
        torch.nn.Flatten(),
        torch.nn.Linear(3 * 16 * 16, len(loader.index.classes)),
    )
    model = DistributedDataParallel(
        net.to(device), device_ids=None if device.type == "cpu" else [device.index]
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for epoch in range(arguments.epochs):
        images = torch.zeros((), dtype=torch.int64, device=device)
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            images += len(batch["label"])
        dist.all_reduce(images)
        if dist.get_rank() == 0:
            print(
                f"epoch {epoch}: {images.item():,} of {len(loader.index):,} images on "
                f"{dist.get_world_size()} ranks, loss {loss.item():.3f}",
                flush=True,
            )
dist.destroy_process_group()
