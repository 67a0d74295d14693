"""Hugging Face Accelerate: any number of processes, and a resume in mid-epoch.

accelerate launch examples/accelerate_lfw.py lfw --epochs 2
accelerate launch examples/accelerate_lfw.py lfw --epochs 2   # again: goes on after an interrupt

Accelerate prepares the model and the optimizer. The loader needs no preparing: it takes the part of
its rank, and its batches are on the device. Accelerate saves its state with everything else.
"""

import argparse
from pathlib import Path

import torch
from accelerate import Accelerator

import gpupipe

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("config", nargs="?", default="lfw")
parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--save-every", type=int, default=10, help="Steps between two checkpoints.")
parser.add_argument("--stop-after", type=int, help="Stop after so many steps, as if interrupted.")
parser.add_argument("--checkpoint", type=Path, default=Path("accelerate_lfw"))
arguments = parser.parse_intermixed_args()  # options may stand among the overrides

accelerator = Accelerator()
device = f"cuda:{accelerator.local_process_index}" if accelerator.device.type == "cuda" else "cpu"
with gpupipe.load(arguments.config, *arguments.overrides, device=device) as loader:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(16),
        torch.nn.Flatten(),
        torch.nn.Linear(3 * 16 * 16, len(loader.index.classes)),
    )
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    accelerator.register_for_checkpointing(loader)
    if arguments.checkpoint.exists():
        accelerator.load_state(str(arguments.checkpoint))
        state = loader.state_dict()
        accelerator.print(f"resumed in epoch {state['epoch']} after {state['position']} samples")

    monitor = gpupipe.Monitor(loader)
    step = 0
    while loader.sampler.epoch < arguments.epochs:
        loss = torch.zeros(())
        for batch in monitor:
            loss = torch.nn.functional.cross_entropy(net(batch["image"]), batch["label"])
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % arguments.save_every == 0:
                accelerator.save_state(str(arguments.checkpoint))
            if step == arguments.stop_after:
                raise SystemExit(0)
        accelerator.print(f"epoch {loader.sampler.epoch - 1}: loss {loss.item():.3f}")
    accelerator.print(monitor.summary())
accelerator.end_training()
