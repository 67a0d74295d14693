"""A plain loop over a data set of torchvision, whose transform becomes the pipeline.

python examples/loops/plain_loop.py FOLDER_OF_CLASS_FOLDERS
"""

import sys

import torch
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import gpupipe

transform = v2.Compose(
    [
        v2.RandomResizedCrop(64),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
    ]
)
with gpupipe.load(ImageFolder(sys.argv[1], transform), batch_size=16) as loader:
    device = loader.engine.device.replace("gpu", "cuda")
    net = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(192, len(loader.index.classes)),
    ).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for epoch in range(2):
        for batch in loader:
            loss = torch.nn.functional.cross_entropy(net(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.3f}")
