"""ResNet-18 on a folder of images, a part of which measures the accuracy after each epoch.

python examples/resnet.py configs/mine.yaml --epochs 10 batch_size=64

The config has labels, and makes float images of one size. Both loaders read the same data set:
`split` keeps a tenth of each class for validation, and both parts have the same class numbers.
"""

import argparse
from typing import Any

import torch
from torchvision.models import resnet18

import gpupipe

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("config", nargs="?", default="lfw")
parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--eval-pipeline", default=None, help="Pipeline of the validation part.")
arguments = parser.parse_intermixed_args()  # options may stand among the overrides

changes: dict[str, Any] = {"split": {"train": 0.9, "val": 0.1}}
val_changes: dict[str, Any] = {"shuffle": False, "last_batch": "partial", "batch": []}
if arguments.eval_pipeline:
    val_changes["pipeline"] = arguments.eval_pipeline

with (
    gpupipe.load(arguments.config, *arguments.overrides, **changes, subset="train") as train,
    gpupipe.load(
        arguments.config, *arguments.overrides, **changes, **val_changes, subset="val"
    ) as val,
):
    device = train.engine.device.replace("gpu", "cuda")
    torch.manual_seed(0)
    net = resnet18(num_classes=len(train.index.classes)).to(device)
    steps = arguments.epochs * len(train)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=steps)
    loss = torch.zeros(())
    for epoch in range(arguments.epochs):
        net.train()
        for batch in train:
            loss = torch.nn.functional.cross_entropy(net(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        net.eval()
        right = total = 0
        with torch.no_grad():
            for batch in val:
                right += (net(batch["image"]).argmax(1) == batch["label"]).sum().item()
                total += len(batch["label"])
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right / total:.1%} of {total:,}")
