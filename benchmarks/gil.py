"""How long the interpreter's lock is held for each image, by pipeline, and the rate at which one
process stops to scale.

    # about 5 minutes, with nothing beside it; writes benchmarks/results/gil.json, from which
    # benchmarks/performance_tables.py writes the table in docs/performance.md
    python benchmarks/gil.py
    python benchmarks/gil.py --only simclr  # one pipeline; writes gil.simclr.json
    python benchmarks/gil.py --batch-size 32  # writes gil.batch-32.json
    python benchmarks/gil.py --quick  # a check that it runs
    # one pipeline, one process, one line of JSON
    python benchmarks/gil.py --one cpu simclr

Method: the loader runs with one thread, torch too, and a thread of C looks about every 50 us, at
random moments, whether the lock is held. It reads the flag of the lock, and never takes the lock.
The share of the looks at which it is held, times the time an image, are the microseconds. A thread
that holds the lock and waits for a core counts too. So while another process takes the cores, the
lock seems to be held several times as long: therefore the microseconds are the median of those of
five spans of time. A span ends with a batch, and is as long as four batches or longer.
`others_cores` is how many cores other processes kept busy. The error that is stated is two standard
deviations of the share, if the looks are independent. What the loop over the batches does itself is
counted too, and the start of an epoch, here every 1000 images. CPU time is that of the process,
without the probe's, also as the median of the spans.

The model: a process with N cores makes min(N / CPU time, 1 / lock time) images a second.
"""

import argparse
import ctypes
import json
import math
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import baselines
import detection_data
import harness
import measuring
import photos

_ENGINES = ("cpu", "dali")
_RECIPES = (
    "torchvision_resnet50_v2",
    "timm_a1",
    "timm_a2",
    "timm_a3",
    "simclr",
    "dino_v2",
    "byol",
    "autoaugment",
    "randaugment",
    "progressive_resizing",
    "cifar10",
)
_ANNOTATED = ("ssd", "ssdlite", "multiscale", "detr", "keypoint_rcnn", "segmentation_train")
_NAMES = (*baselines.WORKLOADS, *_RECIPES, *_ANNOTATED)
_GOALS = dict.fromkeys((*baselines.WORKLOADS, "torchvision_resnet50_v2"), 12.0)
_RECIPE_GOAL = 25.0
_BATCH_SIZE = 128
_PERIOD_NS = 50_000
_MODEL_CORES = (1, 8, 32, 96)
_WARM_SECONDS = 1.0
_SPANS, _BATCHES_IN_A_SPAN = 5, 4


class Counts(NamedTuple):
    """What the probe counts: how often it looked, and how often the lock was held."""

    looks: int
    held: int

    @property
    def share(self) -> float:
        """The share of the time in which the lock is held."""
        return self.held / self.looks


class Span(NamedTuple):
    """What was counted in a span of time.

    Attributes:
        looks: How often the probe looked.
        held: How often the lock was held then.
        images: How many images the loader made.
        seconds: How long it took.
        cpu_seconds: CPU time of the process, with the probe's.
    """

    looks: int
    held: int
    images: int
    seconds: float
    cpu_seconds: float

    @property
    def lock_us(self) -> float:
        """Microseconds an image for which the lock was held."""
        return 1e6 * self.held / self.looks * self.seconds / self.images

    @property
    def cpu_us(self) -> float:
        """Microseconds an image of CPU time."""
        return 1e6 * self.cpu_seconds / self.images


class Probe:
    """Looks at the interpreter's lock.

    Args:
        function: probe_lock of lock_probe.c.
    """

    def __init__(self, function: Any) -> None:
        self._function = function
        self._looks, self._held, self._is_over = (ctypes.c_int64() for _ in range(3))

    def __call__(self, seconds: float) -> Counts:
        """Look for so many seconds, or until `stop`; return the counts. Call it once."""
        references = map(ctypes.byref, (self._looks, self._held, self._is_over))
        self._function(seconds, _PERIOD_NS, *references)
        return self.counts

    @property
    def counts(self) -> Counts:
        """What is counted so far."""
        held = self._held.value
        return Counts(self._looks.value, held)

    def stop(self) -> None:
        """End the call."""
        self._is_over.value = 1


def find_lock(spans: Sequence[Span]) -> tuple[float, float]:
    """Return the microseconds an image, the median of spans, and two standard deviations."""
    total = _sum(spans)
    share = median(span.held / span.looks for span in spans)
    error = 2 * math.sqrt(share * (1 - share) / total.looks)
    return median(span.lock_us for span in spans), 1e6 * error * total.seconds / total.images


def _sum(spans: Sequence[Span]) -> Span:
    return Span(*map(sum, zip(*spans, strict=True)))


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments)))
        return
    photos.imagenet_like(arguments.data, arguments.images)
    names = [arguments.only] if arguments.only else _NAMES
    result = {}
    for name in names:
        options = harness.passed_on(arguments, "images", "seconds", "batch_size")
        result[name] = found = harness.fresh(__file__, "--one", arguments.engine, name, *options)
        print(describe(name, found), flush=True)
    engine = None if arguments.engine == "cpu" else arguments.engine
    size = arguments.batch_size
    parts = ["gil", engine, arguments.only, None if size == _BATCH_SIZE else f"batch-{size}"]
    path = harness.write(".".join(filter(None, parts)), {"pipelines": result}, arguments)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.options(__doc__)
    harness.add_number(parser, "--seconds", 8.0, "of a measurement")
    harness.add_number(parser, "--images", 1000, "photographs")
    harness.add_number(parser, "--batch-size", _BATCH_SIZE, "images in a batch of a recipe")
    parser.add_argument("--engine", default="cpu", choices=_ENGINES, help="default: %(default)s")
    harness.add_selection(parser, _NAMES)
    arguments = parser.parse_args()
    if arguments.quick:
        vars(arguments).update({"seconds": 1.0, "images": 300})
    return arguments


def one(engine: str, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one pipeline here."""
    import torch

    import gpupipe.loader

    torch.set_num_threads(1)
    config, options = _pipeline(name, arguments)
    options |= {"engine": engine, "device": "cpu", "threads": 1}
    probe = load_probe(arguments.data)
    with gpupipe.load(config, **options) as loader:
        started = time.perf_counter()
        while time.perf_counter() - started < _WARM_SECONDS:
            for _ in loader:
                pass
        started = time.perf_counter()
        batches = sum(1 for _ in loader)
        least = _SPANS * _BATCHES_IN_A_SPAN * (time.perf_counter() - started) / batches
        return measure(loader, probe, max(arguments.seconds, least))


def _pipeline(name: str, arguments: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    workload = baselines.WORKLOADS.get(name)
    if workload is not None:
        root = baselines.images_root(workload, arguments.data, arguments.images)
        config = {"data": {"source": "folder", "root": str(root)}, "pipeline": workload.pipeline}
        return config, {"batch_size": workload.batch_size, "shuffle": workload.shuffle}
    if name in _ANNOTATED:
        data = _find_annotated(name, arguments)
        return name, {"batch_size": arguments.batch_size, "data": data}
    root = photos.imagenet_like(arguments.data, arguments.images)
    data = {"source": "folder", "root": str(root)}
    return name, {"batch_size": arguments.batch_size, "repeats": 1, "data": data}


def _find_annotated(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    if name == "segmentation_train":
        file = detection_data.with_masks(arguments.data, arguments.images)
        return {"source": "file_list", "file": str(file)}
    keypoints = name == "keypoint_rcnn"
    root, file = detection_data.coco_like(arguments.data, arguments.images, keypoints=keypoints)
    return {"source": "coco", "root": str(root), "annotations": str(file)}


def measure(loader: Any, probe: Probe, seconds: float) -> dict[str, Any]:
    """Run epochs while the probe looks; return microseconds an image, with the error."""
    probes_own: list[float] = []

    def run_probe() -> None:
        probe(math.inf)
        probes_own.append(time.thread_time())

    def read() -> Span:
        return Span(*probe.counts, images, time.perf_counter(), time.process_time())

    images, spans, others = 0, list[Span](), measuring.cores_cpu_seconds()
    thread = threading.Thread(target=run_probe)
    thread.start()
    try:
        begin = read()
        while len(spans) < _SPANS:
            for batch in loader:
                images += count(batch)
                if time.perf_counter() - begin.seconds < seconds / _SPANS:
                    continue
                end = read()
                spans.append(Span(*(new - old for new, old in zip(end, begin, strict=True))))
                begin = end
                if len(spans) == _SPANS:
                    break
    finally:
        probe.stop()
        thread.join()
    total = _sum(spans)
    others = measuring.cores_cpu_seconds() - others - total.cpu_seconds
    lock, error = find_lock(spans)
    cpu_time = median(span.cpu_us for span in spans) - 1e6 * probes_own[0] / total.images
    return {
        "lock_us": lock,
        "lock_error_us": error,
        "cpu_us": cpu_time,
        "images": total.images,
        "looks": total.looks,
        "spans": [span.lock_us for span in spans],
        "others_cores": max(0.0, others) / total.seconds,
        "model_rates": {n: 1e6 / max(cpu_time / n, lock) for n in _MODEL_CORES},
    }


def count(batch: Any) -> int:
    """Return how many images a batch has, in any format."""
    if isinstance(batch, dict):
        return len(batch["label"] if "label" in batch else batch["image"])
    return len(batch[0])


def load_probe(data: Path) -> Probe:
    """Compile lock_probe.c in the folder of made data."""
    source = Path(__file__).with_name("lock_probe.c")
    library = data / f"lock_probe-{sys.version_info[1]}-{source.stat().st_mtime_ns}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        include = f"-I{sysconfig.get_path('include')}"
        command = ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", include, str(source), "-o"]
        subprocess.run([*command, str(library)], check=True)
    function = ctypes.CDLL(str(library)).probe_lock
    function.argtypes = [ctypes.c_double, ctypes.c_int64, *[ctypes.c_void_p] * 3]
    function.restype = None
    return Probe(function)


def find_goal(name: str) -> float:
    """Return the microseconds an image for which the lock of a pipeline may be held."""
    return _GOALS.get(name, _RECIPE_GOAL)


def describe(name: str, found: dict[str, Any]) -> str:
    """Return the line of the table: the lock's time, the goal, and the model's rates."""
    goal = find_goal(name)
    verdict = "holds" if found["lock_us"] <= goal else "FAILS"
    rates = ", ".join(f"{n}: {rate:,.0f}" for n, rate in found["model_rates"].items())
    return (
        f"{name:24} lock {found['lock_us']:6.1f} +- {found['lock_error_us']:.1f} us an image "
        f"(goal {goal:g}: {verdict}), CPU {found['cpu_us']:7,.0f} us; images/s by cores: {rates}; "
        f"others kept {found['others_cores']:.2f} cores busy"
    )


if __name__ == "__main__":
    main()
