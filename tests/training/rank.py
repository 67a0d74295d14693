"""One rank of a training run: started by torchrun in test_ranks.py.

Trains a tiny net under DDP (or FSDP), writes the ids of every batch, a JSON line each, saves a
checkpoint behind every second step, and kills itself with SIGKILL behind step --kill.
"""

import argparse
import gc
import json
import os
import signal
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import gpupipe


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=3)
    parser.add_argument("--kill", type=int)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--engine", default="dataloader")
    parser.add_argument("--fsdp", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    with gpupipe.load(
        arguments.config,
        engine=arguments.engine,
        batch_size=arguments.batch_size,
        ids=True,
        device="cpu",
    ) as loader:
        train(loader, arguments)
    # DDP is in a cycle and holds the group: gloo's threads would abort the exiting interpreter
    gc.collect()
    dist.destroy_process_group()


def train(loader: gpupipe.Loader, arguments: argparse.Namespace) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(27, 4))
    optimizer, model = wrapped(net, arguments.fsdp)
    if arguments.resume:
        kept = torch.load(arguments.resume)
        net.load_state_dict(kept["net"])
        optimizer.load_state_dict(kept["optimizer"])
        loader.load_state_dict(kept["loader"])
    rank, steps = dist.get_rank(), 0
    with (arguments.folder / f"rank{rank}.jsonl").open("a", buffering=1) as out:
        while loader.sampler.epoch < arguments.epochs:
            epoch = loader.sampler.epoch
            for batch in loader:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"]).backward()
                optimizer.step()
                steps += 1
                out.write(
                    json.dumps({"epoch": epoch, "ids": batch["id"].tolist(), "len": len(loader)})
                    + "\n"
                )
                if rank == 0 and steps % 2 == 0 and not arguments.fsdp:
                    save(
                        arguments.folder / "kept.pt",
                        {
                            "net": net.state_dict(),
                            "optimizer": optimizer.state_dict(),
                            "loader": loader.state_dict(),
                        },
                    )
                if steps == arguments.kill:
                    dist.barrier()
                    os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0 and not arguments.fsdp:
        torch.save(net.state_dict(), arguments.folder / "net.pt")


def wrapped(net: torch.nn.Module, fsdp: bool) -> tuple[torch.optim.Optimizer, torch.nn.Module]:
    if fsdp:
        from torch.distributed.fsdp import fully_shard

        fully_shard(net)
        return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net
    return torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9
    ), torch.nn.parallel.DistributedDataParallel(net)


def save(file: Path, content: dict[str, Any]) -> None:
    torch.save(content, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


if __name__ == "__main__":
    main()
