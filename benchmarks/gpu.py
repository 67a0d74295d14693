"""GPU throughput: gpupipe against DALI pipelines written by hand, decoding alone, and torchvision.

    python benchmarks/gpu.py                       # within 8 minutes on 16 cores; writes benchmarks/results/gpu.json after every run
    python benchmarks/gpu.py --photos DIR --out X  # photographs from DIR/CLASS/*.jpg; without any, drawn images of 250x250, and it says so
    python benchmarks/gpu.py --check-graphs        # needs no GPU: makes the nodes of the hand-written graphs
    python benchmarks/gpu.py --one hand-written-fancy@0.65 lfw-affine

Answers: images a second with the batch on the GPU (torch.cuda.synchronize() ends every pass), peak GPU memory, and whether gpupipe's
goals hold; what loader.hw_decoder_load does; what torchvision's DataLoader gets to with 4, 8 and 16 workers. A contestant may end in
@LOAD, the share of JPEGs for the hardware decoder (gpupipe's default elsewhere, for all alike). "-region" decodes only what a crop
needs, and runs only where gpupipe's probe says that this survives; "-fancy" upsamples chroma as gpupipe and torchvision do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import yardsticks

_COPIES = 4
_LIMIT_SECONDS = 90.0
_WARM_SECONDS = 1.0
_LOADS = (0.0, 0.25, 0.5, 0.65, 0.8, 0.9, 1.0)
_WORKERS = (4, 8, 16)
_TO_HAND, _TO_DECODE = 0.97, 0.95
_WORKLOADS = ("lfw-affine", "imagenet_train")
_HAND = {"lfw-affine": yardsticks.affine, "imagenet_train": yardsticks.train_whole}


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.check_graphs:
        check_graphs()
        return
    _need_gpu()
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments)))
        return
    everything(arguments)


def _arguments() -> argparse.Namespace:
    parser = harness.options(__doc__)
    parser.add_argument("--photos", type=Path, help="folder of class folders with photographs (default: GPUPIPE_PHOTOS, else shared/data/photos)")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds of gpupipe and hand-written DALI (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="least seconds of measured passes (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=400.0, help="seconds after which what is left is skipped, and said so (default: %(default)s)")
    parser.add_argument("--images", type=int, default=12_000, help="images of a set, each file under 4 names (default: %(default)s)")
    parser.add_argument("--one", nargs=2, metavar=("CONTESTANT", "WORKLOAD"), help="run one contestant here, and print one line of JSON")
    parser.add_argument("--check-graphs", action="store_true", help="make the hand-written graphs' nodes, without a GPU, and end")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rounds, arguments.seconds, arguments.images = 1, 1.0, 2000
    if arguments.photos:
        os.environ["GPUPIPE_PHOTOS"] = str(arguments.photos.resolve())
    return arguments


def _need_gpu() -> None:
    import torch

    if not torch.cuda.is_available():
        sys.exit("benchmarks/gpu.py needs an NVIDIA GPU, and torch sees none (--check-graphs needs none; benchmarks/core.py measures the CPU)")


def check_graphs() -> None:
    """Make every hand-written graph for a GPU inside a pipeline that has none: wrong operator names and arguments show."""
    from nvidia.dali import Pipeline, fn

    for graph in (yardsticks.affine, yardsticks.train_whole, yardsticks.train_region, yardsticks.evaluate, yardsticks.decode_only):
        with Pipeline(batch_size=1, num_threads=1, device_id=None):
            encoded, labels = fn.readers.file(file_root=".", random_shuffle=True, name="reader")
            made = graph(encoded, "gpu", hw_decoder_load=0.9, jpeg_fancy_upsampling=True)
            print(f"{graph.__name__}: ends on the {made.device}, labels on the {labels.gpu().device}")


# --- data


def images_root(workload: str, arguments: argparse.Namespace) -> tuple[Path, str]:
    """A set of --images JPEGs, every file under four names (a new file to all but the page cache), and what it consists of."""
    import photos

    count = arguments.images // _COPIES
    try:
        photos.photographs()
    except FileNotFoundError:
        return photos.copied(photos.drawn(arguments.data, count), _COPIES), "drawn 250x250 images (gpupipe.stand_in), not photographs"
    make = photos.lfw_like if yardsticks.WORKLOADS[workload].photos == "lfw" else photos.imagenet_like
    root = make(arguments.data, count)
    return photos.copied(root, _COPIES), f"windows of photographs, {root.name}"


# --- one contestant, in a process of its own


def one(contestant: str, workload: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What harness.measured returns, and peak_gpu_mib: the most that the GPU held beyond the bare CUDA context, looked at in the warm-up."""
    import torch

    name, _, load = contestant.partition("@")
    root, _ = images_root(workload, arguments)
    build, size = _contestant(name, float(load or 0.9), workload, root, harness.threads())
    torch.cuda.init()
    before = _used_mib()
    watched = _Watched(build)
    found = harness.measured(watched.build, size, arguments.seconds, _WARM_SECONDS, torch.cuda.synchronize)
    return found | {"peak_gpu_mib": watched.peak - before}


def _used_mib() -> float:
    import torch

    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**20


class _Watched:
    """Batches, of which the first pass looks at the GPU's memory behind each."""

    def __init__(self, build: Callable[[], Any]) -> None:
        self._build, self._batches, self.peak = build, None, 0.0

    def build(self) -> _Watched:
        self._batches = self._build()
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches) if self.peak else self._watching()

    def _watching(self) -> Iterator[Any]:
        for batch in self._batches:
            self.peak = max(self.peak, _used_mib())
            yield batch


def _contestant(name: str, load: float, workload: str, root: Path, threads: int) -> tuple[Callable[[], Any], Callable[[Any], int]]:
    """How its batches are built, and how many images a batch has."""
    given = yardsticks.WORKLOADS[workload]
    kind, *how = name.split("-")
    if kind == "gpupipe":
        return _gpupipe(given, root, load)
    if kind == "torchvision":
        return lambda: _onto_gpu(given, root, how[0], int(how[1])), len
    if kind == "decode":
        return lambda: _Decoded(given, root, threads, load), len
    graph = yardsticks.train_region if "region" in how else _HAND[workload]
    decoder = {"hw_decoder_load": load} | ({"jpeg_fancy_upsampling": True} if "fancy" in how else {})
    pipe = yardsticks.dali_pipeline
    return lambda: yardsticks.dali_batches(pipe(graph, root, given.batch_size, threads, given.shuffle, 0, **decoder)), yardsticks.dali_size


def _gpupipe(workload: yardsticks.Workload, root: Path, load: float) -> tuple[Callable[[], Any], Callable[[Any], int]]:
    import gpupipe.engines.dali
    import gpupipe.loader

    config = {"data": {"source": "folder", "root": str(root)}, "pipeline": workload.pipeline}
    options = {"batch_size": workload.batch_size, "shuffle": workload.shuffle, "device": "gpu:0", "hw_decoder_load": load}
    return lambda: gpupipe.loader.load(config, **options), lambda batch: batch["image"].shape[0]


class _Decoded:
    """Epochs of decoding alone; the pixels stay where they are."""

    def __init__(self, workload: yardsticks.Workload, root: Path, threads: int, load: float) -> None:
        options = {"device_id": 0, "hw_decoder_load": load}
        self._pipe = yardsticks.dali_pipeline(yardsticks.decode_only, root, workload.batch_size, threads, workload.shuffle, **options)
        self._pipe.build()
        self._runs = -(-self._pipe.reader_meta("reader")["epoch_size"] // workload.batch_size)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._runs):
            yield self._pipe.run()[0]


def _onto_gpu(workload: yardsticks.Workload, root: Path, decoder: str, workers: int) -> Any:
    batches = yardsticks.torchvision_batches(workload, root, decoder, workers, pin_memory=True)

    class Moved:
        def __iter__(self) -> Iterator[Any]:
            for image, label in batches:
                label.cuda(non_blocking=True)
                yield image.cuda(non_blocking=True)

    return Moved()


# --- all of them


def everything(arguments: argparse.Namespace) -> None:
    """The goals' rounds first, then single runs. What fails, and what the budget does not allow, is listed and left out."""
    from gpupipe.probe import region_decode_survives

    started = time.monotonic()
    result: dict[str, Any] = {"data": {w: images_root(w, arguments)[1] for w in _WORKLOADS}, "region_decode_survives": region_decode_survives(0)}
    result |= {"left_out": [], "rounds": {}, "extra": {}}
    for workload in _WORKLOADS:
        _rounds(workload, result, arguments)
        harness.write("gpu", result | _judged(result["rounds"]), arguments)
    for contestant, workload in _extras(result["region_decode_survives"]):
        if time.monotonic() - started > arguments.budget:
            result["left_out"].append(f"{contestant}, {workload}: no time left")
            continue
        _extra(contestant, workload, result, arguments)
        harness.write("gpu", result | _judged(result["rounds"]), arguments)
    _report(result, harness.write("gpu", result | _judged(result["rounds"]) | {"wall_seconds": time.monotonic() - started}, arguments))


def _rounds(workload: str, result: dict[str, Any], arguments: argparse.Namespace) -> None:
    names = ["gpupipe", "hand-written", "decode-only"]
    names += ["hand-written-region"] if workload == "imagenet_train" and result["region_decode_survives"] else []
    try:
        result["rounds"][workload] = harness.interleaved(lambda c: _run(c, workload, arguments), names, arguments.rounds, workload)
    except RuntimeError as e:
        _leave_out(f"all rounds, {workload}: {e}", result)


def _extra(contestant: str, workload: str, result: dict[str, Any], arguments: argparse.Namespace) -> None:
    try:
        found = _run(contestant, workload, arguments)
    except RuntimeError as e:
        _leave_out(f"{contestant}, {workload}: {e}", result)
        return
    result["extra"].setdefault(workload, {})[contestant] = [found]
    harness.say(f"{workload}: {contestant} {found['images_per_second']:,.0f} images/s")


def _leave_out(why: str, result: dict[str, Any]) -> None:
    harness.say(why)
    result["left_out"].append(why)


def _extras(region: bool) -> list[tuple[str, str]]:
    """Single runs, the more telling first."""
    affine, train = _WORKLOADS
    fancy = [("hand-written-fancy", affine), ("hand-written-region-fancy" if region else "hand-written-fancy", train)]
    sweep = [(f"gpupipe@{load:g}", affine) for load in _LOADS]
    loaders = [(f"torchvision-tensor-{n}", w) for w in _WORKLOADS for n in _WORKERS]
    return fancy + sweep + loaders + [(f"decode-only@{load:g}", affine) for load in _LOADS]


def _run(contestant: str, workload: str, arguments: argparse.Namespace) -> dict[str, Any]:
    shared = harness.passed_on(arguments, "seconds", "images")
    return harness.fresh(__file__, "--one", contestant, workload, *shared, limit=_LIMIT_SECONDS)


def _judged(rounds: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Ratios and goals of every workload. A crop decodes whole or in part: gpupipe is held against the better of the two."""
    ratios: dict[str, Any] = {}
    goals: list[dict[str, Any]] = []
    for workload, found in rounds.items():
        ratios[workload] = {other: harness.ratio(found["gpupipe"], found[other]) for other in found if other != "gpupipe"}
        hand = min((r["median"], other) for other, r in ratios[workload].items() if other.startswith("hand"))
        goals.append(harness.goal(f"{workload}: gpupipe / {hand[1]}", hand[0], _TO_HAND))
        goals.append(harness.goal(f"{workload}: gpupipe / decode-only", ratios[workload]["decode-only"]["median"], _TO_DECODE))
    return {"ratios": ratios, "goals": goals}


def _report(result: dict[str, Any], path: Path) -> None:
    judged = _judged(result["rounds"])
    for workload, found in result["rounds"].items():
        print(f"\n{workload}: {result['data'][workload]}")
        harness.print_table(found | result["extra"].get(workload, {}))
        for other, ratio in judged["ratios"][workload].items():
            harness.print_ratio(f"gpupipe / {other}", ratio)
    harness.print_goals(judged["goals"])
    for why in result["left_out"]:
        print(f"  left out: {why}")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
