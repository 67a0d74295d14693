"""Train a small Faster R-CNN on a CPU, and evaluate it with pycocotools.

    # about 5 minutes on two cores: drawn shapes, which need no download
    python examples/train_detector.py --out result.json

The data is a COCO file with drawn shapes. Boxes take the whole path: from the file through random
steps into the model, and its predictions back onto the stored images. Needs pycocotools.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign

import gpupipe
from gpupipe.bench.machine import machine
from gpupipe.detection import to_original

SHAPES = ("circle", "square", "triangle")
SIZE = 128
TRAIN = [
    "decode",
    {"random_photometric_distort": {"p": 0.3}},
    {"random_horizontal_flip": {"p": 0.5}},
    {"random_zoom_out": {"side_range": [1, 1.5], "fill": [127], "p": 0.3}},
    {"resize": {"size": [SIZE, SIZE]}},
    {"to_dtype": {"dtype": "float32", "scale": True}},
    "sanitize_bounding_boxes",
]
EVAL = ["decode", {"resize": {"size": [SIZE, SIZE]}}, TRAIN[-2]]


def draw_images(folder: Path, count: int, seed: int) -> Path:
    """Draw images of 1 to 4 shapes that do not overlap; return their COCO file."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number in range(count):
        width, height = (int(n) for n in rng.integers(120, 200, 2))
        noise = rng.integers(90, 160, (height, width, 3)).astype(np.uint8)
        image = Image.fromarray(noise)
        pen = ImageDraw.Draw(image)
        boxes: list[tuple[int, int, int, int]] = []
        for _ in range(rng.integers(1, 5)):
            side = int(rng.integers(24, 64))
            left, top = (int(rng.integers(0, n - side)) for n in (width, height))
            box = (left, top, left + side, top + side)
            if any(_overlap(box, other) for other in boxes):
                continue
            boxes.append(box)
            kind = int(rng.integers(len(SHAPES)))
            _draw_shape(pen, kind, box, tuple(int(c) for c in rng.choice([0, 60, 200, 255], 3)))
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": number,
                    "category_id": kind + 1,
                    "bbox": [left, top, side, side],
                    "area": side * side,
                    "iscrowd": 0,
                }
            )
        name = f"{number:05d}.png"
        image.save(folder / name)
        images.append({"id": number, "file_name": name, "width": width, "height": height})
    categories = [{"id": n, "name": name} for n, name in enumerate(SHAPES, 1)]
    content = {"images": images, "annotations": annotations, "categories": categories}
    file = folder / "annotations.json"
    file.write_text(json.dumps(content))
    return file


def _overlap(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    across = min(one[2], other[2]) - max(one[0], other[0])
    return across > 0 and min(one[3], other[3]) > max(one[1], other[1])


def _draw_shape(
    pen: ImageDraw.ImageDraw, kind: int, box: tuple[int, int, int, int], color: tuple[int, ...]
) -> None:
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1
    if kind == 0:
        pen.ellipse((left, top, right, bottom), fill=color)
    elif kind == 1:
        pen.rectangle((left, top, right, bottom), fill=color)
    else:
        pen.polygon([((left + right) / 2, top), (right, bottom), (left, bottom)], fill=color)


def load(file: Path, pipeline: list[Any], batch_size: int, **options: Any) -> gpupipe.Loader:
    """Load a COCO file as torchvision's detectors take it: lists of images and targets."""
    data = {"source": "coco", "root": str(file.parent), "annotations": str(file)}
    return gpupipe.load(
        {"data": data, "pipeline": pipeline, "loader": {"format": "torchvision"}},
        batch_size=batch_size,
        device="cpu",
        **options,
    )


def make_model() -> FasterRCNN:
    """Return torchvision's Faster R-CNN with a backbone of five convolutions."""
    layers: list[torch.nn.Module] = []
    channels = 3
    for width, stride in ((16, 2), (32, 2), (64, 2), (64, 1), (64, 1)):
        layers += [
            torch.nn.Conv2d(channels, width, 3, stride, 1, bias=False),
            torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(inplace=True),
        ]
        channels = width
    backbone = torch.nn.Sequential(*layers)
    backbone.out_channels = channels  # type: ignore[assignment]  # the detector reads it
    return FasterRCNN(
        backbone,
        min_size=SIZE,
        max_size=SIZE,
        rpn_anchor_generator=AnchorGenerator(((20, 40, 64),), ((1.0,),)),
        box_roi_pool=MultiScaleRoIAlign(["0"], 5, 2),
        rpn_pre_nms_top_n_train=300,
        rpn_post_nms_top_n_train=100,
        rpn_pre_nms_top_n_test=100,
        rpn_post_nms_top_n_test=50,
        box_batch_size_per_image=64,
        box_head=torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(channels * 25, 128), torch.nn.ReLU()
        ),
        box_predictor=_Predictor(128, 1 + len(SHAPES)),  # class 0 is the background
    )


class _Predictor(torch.nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.scores = torch.nn.Linear(width, classes)
        self.boxes = torch.nn.Linear(width, 4 * classes)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.scores(x), self.boxes(x)


def train(model: FasterRCNN, loader: gpupipe.Loader, epochs: int) -> None:
    """Train for some epochs."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=1e-4)
    steps = epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for images, targets in loader:
            loss = torch.stack([*model(images, targets).values()]).sum()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch}: loss {total / len(loader):.3f}", flush=True)


def predict(model: FasterRCNN, loader: gpupipe.Loader) -> list[dict[str, Any]]:
    """Return the predictions as COCO's results, on the images as they are stored."""
    category_ids = loader.index.extra["category_ids"]
    results = []
    model.eval()
    with torch.inference_mode():
        for images, targets in loader:
            predictions = model(images)
            all_boxes = to_original([p["boxes"] for p in predictions], targets)
            for target, found, boxes in zip(targets, predictions, all_boxes, strict=True):
                left_top, right_bottom = boxes[:, :2], boxes[:, 2:]
                rows = torch.cat([left_top, right_bottom - left_top], 1).tolist()
                for row, label, score in zip(rows, found["labels"], found["scores"], strict=True):
                    results.append(
                        {
                            "image_id": int(target["image_id"]),
                            "category_id": category_ids[int(label) - 1],
                            "bbox": row,
                            "score": float(score),
                        }
                    )
    return results


def evaluate(file: Path, results: Any) -> dict[str, float]:
    """Return AP and AP50, as pycocotools computes them."""
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(str(file))
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return {"AP": float(evaluation.stats[0]), "AP50": float(evaluation.stats[1])}


def main() -> None:
    """Draw, train, predict, evaluate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=800, help="to train on")
    parser.add_argument("--test-images", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file for the result, as JSON")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train_file = draw_images(Path(folder, "train"), arguments.images, seed=1)
        test_file = draw_images(Path(folder, "test"), arguments.test_images, seed=2)
        model = make_model()
        with load(train_file, TRAIN, 8, seed=arguments.seed, last_batch="drop") as loader:
            train(model, loader, arguments.epochs)
        with load(test_file, EVAL, 16, shuffle=False) as loader:
            results = predict(model, loader)
        scores = evaluate(test_file, results)
    seconds = time.perf_counter() - started
    print(f"AP {scores['AP']:.3f}, AP50 {scores['AP50']:.3f} after {seconds:.0f} s")
    if arguments.out:
        options = {k: v for k, v in vars(arguments).items() if k != "out"}
        result = options | scores | {"seconds": seconds, "machine": machine()}
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
