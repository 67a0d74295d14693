"""The batch stage on one batch, against torchvision's MixUp and CutMix.

    python benchmarks/batch_stage.py

One batch of 64 images, float32 (64, 3, 224, 224), with 1,000 classes. In every round each
contestant processes it several times, one after the other; its time is the least of the round.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import harness
import torch
from round_statistics import ratio
from torchvision.transforms import v2

from gpupipe.batch_stage.mixer import BatchMixer
from gpupipe.batch_stage.stage import build_batch_stage
from gpupipe.dataset.spec import Spec
from gpupipe.schema.document import Document

SHAPE, NUM_CLASSES = (64, 3, 224, 224), 1000
TIMES = 8
Batch = dict[str, torch.Tensor]


def gpupipes(*steps: Any) -> Callable[[Batch, int], Any]:
    """The batch stage with these steps."""
    fields = {"image": Spec.of_array("float32", SHAPE[1:], "CHW")}
    document = Document("benchmark", {"batch": list(steps)})
    stage = build_batch_stage(document, ("batch",), fields, ("image",))
    mixer = BatchMixer(stage, 0, [str(n) for n in range(NUM_CLASSES)])
    ids = torch.arange(SHAPE[0]).numpy()
    return lambda batch, number: mixer.mix(number, ids, batch)


def torchvisions(transform: Any) -> Callable[[Batch, int], Any]:
    return lambda batch, number: transform(batch["image"], batch["label"])


CONTESTANTS = {
    "mixup": gpupipes("mixup"),
    "cutmix": gpupipes("cutmix"),
    "one_hot": gpupipes({"one_hot": {"label_smoothing": 0.1}}),
    "torchvision MixUp": torchvisions(v2.MixUp(num_classes=NUM_CLASSES)),
    "torchvision CutMix": torchvisions(v2.CutMix(num_classes=NUM_CLASSES)),
}


def milliseconds(run: Callable[[Batch, int], Any], batch: Batch) -> float:
    """The least time of several runs, until the device is done."""
    times = []
    for number in range(TIMES):
        started = time.perf_counter()
        run(batch, number)
        if batch["image"].is_cuda:
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started))
    return min(times)


def main() -> None:
    parser = harness.contest(__doc__, rounds=7, seconds=0.0)
    arguments = harness.parsed(parser)
    harness.prepare(arguments)
    torch.set_num_threads(harness.threads())
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batch = {
        "image": torch.rand(SHAPE, device=device),
        "label": torch.randint(NUM_CLASSES, SHAPE[:1], device=device),
    }
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(arguments.rounds):
        for name, run in CONTESTANTS.items():
            rounds[name].append({"milliseconds": milliseconds(run, batch)})
    times = {name: [r["milliseconds"] for r in found] for name, found in rounds.items()}
    ratios = {
        ours: ratio(rounds[theirs], rounds[ours], "milliseconds")
        for ours, theirs in (("mixup", "torchvision MixUp"), ("cutmix", "torchvision CutMix"))
    }
    for name, found in times.items():
        harness.say(
            f"{name:20}{statistics.median(found):8.2f} ms ({min(found):.2f} to {max(found):.2f})"
        )
    for name, found_ratio in ratios.items():
        harness.say(f"{name}: torchvision takes {found_ratio['median']:.2f} times as long")
    what = {"device": device, "shape": SHAPE, "num_classes": NUM_CLASSES, "dtype": "float32"}
    result = {"what": what, "milliseconds": times, "ratio_of_torchvision": ratios}
    harness.say(str(harness.write("batch_stage", result, arguments)))


if __name__ == "__main__":
    main()
