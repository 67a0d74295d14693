"""The loop of torchvision's references/classification/train.py, over batches (image, target).

python examples/loops/references_loop.py FOLDER_OF_CLASS_FOLDERS
"""

import sys
from typing import Any

import torch
from torchvision.models import resnet18

import gpupipe


def train_one_epoch(model: Any, criterion: Any, optimizer: Any, loader: Any) -> None:
    """Train as there; batches are on the device already."""
    model.train()
    for image, target in loader:
        loss = criterion(model(image), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3f}")


data = {"source": "folder", "root": sys.argv[1]}
floats = {"to_dtype": {"dtype": "float32", "scale": True}}
steps = ["decode", {"random_resized_crop": {"size": 64}}, "random_horizontal_flip", floats]
with gpupipe.load({"data": data, "pipeline": steps}, batch_size=16, format="tuple") as loader:
    device = loader.engine.device.replace("gpu", "cuda")
    model = resnet18(num_classes=len(loader.index.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train_one_epoch(model, torch.nn.CrossEntropyLoss(), optimizer, loader)
