"""ResNet-50 in bfloat16, batch 256: how much of a training step is waiting for data?

It trains on batches that are kept on the device, and on those of the loader. The share of waiting
is what the loader's steps take longer. torch.profiler counts the calls that make the CPU wait for
the GPU (cudaStreamSynchronize and the like) in the thread of training, with and without a loader.
"""

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import part
import photos
import torch

_BATCH_SIZE, _QUICK_BATCH_SIZE = 256, 2
_SIDE, _QUICK_SIDE = 224, 32
_SECONDS, _QUICK_SECONDS = 15.0, 0.05
_WARM_STEPS, _QUICK_WARM_STEPS = 12, 1
_PROFILED_STEPS, _QUICK_PROFILED_STEPS = 6, 1
_KEPT = 4
_WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
_MEAN, _STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
Batch = dict[str, torch.Tensor]


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    root, what = part.images(arguments, "imagenet", 40 if arguments.quick else 3000)
    root = root if arguments.quick else photos.copied(root, 4)
    result = part.Part("training", arguments)
    import gpupipe

    quick = arguments.quick
    training = (
        Training(arguments.device, _QUICK_WARM_STEPS, _QUICK_PROFILED_STEPS, "resnet18")
        if quick
        else Training(arguments.device, _WARM_STEPS, _PROFILED_STEPS)
    )
    seconds = _QUICK_SECONDS if quick else _SECONDS
    with gpupipe.load(_config(root, arguments)) as loader:
        kept = list(itertools.islice(_endless(loader), _KEPT))
        first = training.measure(itertools.cycle(kept), seconds / 2)
        result.figures(data=what, kept=first)
        fed = training.measure(_endless(loader), seconds)
        result.figures(loader=fed)
        again = training.measure(itertools.cycle(kept), seconds / 2)
        result.figures(kept_again=again, waiting=waiting(fed, [first, again]))
        calls = {
            "kept": training.waits(itertools.cycle(kept)),
            "loader": training.waits(_endless(loader)),
        }
    result.figures(waits_in_a_step=calls)
    extra = sum(calls["loader"]["training"].values()) - sum(calls["kept"]["training"].values())
    # DALIGenericIterator waits until DALI has made the batch.
    result.check("the training thread waits once a batch at most", extra <= 1, str(calls))
    if arguments.device == "gpu":
        seen = calls["loader"]["runtime calls"] > 0
        result.check("the profiler sees CUDA's calls", seen, str(calls["loader"]))
    result.headline(
        f"{fed['images_per_second']:,.0f} images/s with the loader, "
        f"{max(k['images_per_second'] for k in (first, again)):,.0f} with kept batches, "
        f"{waiting(fed, [first, again]):.1%} waiting"
    )
    result.finish()


def _config(root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """The pipeline `imagenet_train`, delivered as channels_last bfloat16."""
    steps = [
        "decode",
        {"random_resized_crop": {"size": _QUICK_SIDE if arguments.quick else _SIDE}},
        "random_horizontal_flip",
        {"to_dtype": {"dtype": "float32", "scale": True}},
        {"normalize": {"mean": _MEAN, "std": _STD}},
    ]
    loader = {
        "engine": "dali",
        "device": arguments.device,
        "batch_size": _QUICK_BATCH_SIZE if arguments.quick else _BATCH_SIZE,
        "last_batch": "drop",
        "dtype": "bfloat16",
        "memory_format": "channels_last",
    }
    return {"data": {"source": "folder", "root": str(root)}, "pipeline": steps, "loader": loader}


def _endless(loader: Iterable[Batch]) -> Iterator[Batch]:
    while True:
        yield from loader


def waiting(fed: dict[str, float], kept: list[dict[str, float]]) -> float:
    """The share of a step with the loader that is more than a step with kept batches, 0 to 1."""
    alone = min(k["step_seconds"] for k in kept)
    return max(0.0, 1 - alone / fed["step_seconds"])


class Training:
    """A ResNet-50, or another model of torchvision, and its optimizer on a device."""

    def __init__(
        self, device: str, warm_steps: int, profiled_steps: int, model: str = "resnet50"
    ) -> None:
        from torchvision import models

        self._device = torch.device("cuda" if device == "gpu" else "cpu")
        self._warm_steps = warm_steps
        self._profiled_steps = profiled_steps
        torch.backends.cudnn.benchmark = True
        if device == "cpu":
            torch.set_num_threads(1)  # several wait for one another where cores are shared
        net = models.get_model(model, weights=None).to(
            self._device, memory_format=torch.channels_last
        )
        self._net = net
        self._optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(self, batch: Batch) -> None:
        """Nothing in it waits for the device."""
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._net(batch["image"]), batch["label"])
        loss.backward()
        self._optimizer.step()

    def measure(self, batches: Iterator[Batch], seconds: float) -> dict[str, float]:
        """Steps for at least `seconds`, after the warm-up; the device is waited for at the end."""
        for batch in itertools.islice(batches, self._warm_steps):
            self.step(batch)
        self._wait()
        steps, images, in_next = 0, 0, 0.0
        started = time.perf_counter()
        while time.perf_counter() - started < seconds:
            asked = time.perf_counter()
            batch = next(batches)
            in_next += time.perf_counter() - asked
            self.step(batch)
            steps += 1
            images += len(batch["label"])
            if steps % 8 == 0:
                self._wait()  # else the clock of the CPU runs ahead of the steps
        self._wait()
        wall = time.perf_counter() - started
        return {
            "steps": steps,
            "images_per_second": images / wall,
            "step_seconds": wall / steps,
            "seconds_in_next": in_next / steps,
        }

    def waits(self, batches: Iterator[Batch]) -> dict[str, Any]:
        """What a profile of some steps shows of calls that wait for the device, a step."""
        for batch in itertools.islice(batches, min(2, self._warm_steps)):
            self.step(batch)
        self._wait()
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self._device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        with torch.profiler.profile(activities=activities) as profile:
            for batch in itertools.islice(batches, self._profiled_steps):
                self.step(batch)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "trace.json")
            profile.export_chrome_trace(str(file))
            trace = json.loads(file.read_text(encoding="utf-8"))
        return counted(trace["traceEvents"], threading.get_native_id(), self._profiled_steps)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def counted(events: list[dict[str, Any]], thread: int, steps: int) -> dict[str, Any]:
    """Waiting calls a step in a trace of torch.profiler: of `thread`, and of all others.

    "events" and "runtime calls" are how many the trace holds in all.
    """
    runtime = [e for e in events if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    waits = [e for e in runtime if e["name"] in _WAITS]
    own = Counter(e["name"] for e in waits if e["tid"] == thread)
    others = Counter(e["name"] for e in waits if e["tid"] != thread)
    return {
        "training": {name: n / steps for name, n in own.items()},
        "other threads": {name: n / steps for name, n in others.items()},
        "events": len(events),
        "runtime calls": len(runtime),
    }


if __name__ == "__main__":
    main()
