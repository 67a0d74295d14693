"""Hugging Face Accelerate; see examples/accelerate_lfw.py for several processes and a resume.

python examples/loops/accelerate_loop.py FOLDER_OF_CLASS_FOLDERS
"""

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

import gpupipe

paths = sorted(Path(sys.argv[1]).glob("*/*.jpg"))
pairs = [(path, path.parent.name) for path in paths]
steps = [
    "decode",
    {"resize": {"size": [16, 16]}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
accelerator = Accelerator()
with gpupipe.load(pairs, pipeline=steps, batch_size=16, device=str(accelerator.device)) as loader:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, len(loader.index.classes)))
    net, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.01))
    for batch in loader:
        loss = torch.nn.functional.cross_entropy(net(batch["image"]), batch["label"])
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.print(f"loss {loss.item():.3f}")
