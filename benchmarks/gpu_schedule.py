"""The order of gpu.py's runs within its budget, and what they say of its goals."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import baselines
import harness
import round_statistics

_SCRIPT = str(Path(__file__).with_name("gpu.py"))
_COPIES = 4
_LIMIT_SECONDS = {"gpu": 90.0, "cpu": 900.0}
"""For one contestant. The time of a GPU is short, and a CPU may be busy."""
_SOME_SECONDS = 25.0
_TO_HAND, _TO_DECODE = 0.97, 0.95
_SURE_ROUNDS = 2
_WORKLOADS = ("lfw-affine", "imagenet_train")
_LOADS = (0, 0.25, 0.5, 0.65, 0.8, 0.9, 1)
_THREADS = (2, 4, 8, 16)
_PIXELS = (1, 100_000, 1_000_000)
_SWEEPS = {
    "load": [f"gpupipe@load={load}" for load in _LOADS],
    "threads": [f"gpupipe@threads={n}" for n in _THREADS],
    "huffman": [f"decode-only-fancy@load=0,huffman={n}" for n in _PIXELS],
    "decode": [f"decode-only-fancy@load={load}" for load in _LOADS],
}


def need_gpu(device: str) -> None:
    import torch

    if device == "gpu" and not torch.cuda.is_available():
        sys.exit(
            "benchmarks/gpu.py needs an NVIDIA GPU, and torch sees none (--check-graphs "
            "and --device cpu need none)"
        )


def images_root(workload: str, arguments: argparse.Namespace) -> tuple[Path, str]:
    """A set of --images JPEGs, every file under four names (a new file to all but the page cache),
    and what it consists of.
    """
    import photos

    count = arguments.images // _COPIES
    try:
        photos.photographs()
    except FileNotFoundError:
        return photos.copied(
            photos.drawn(arguments.data, count), _COPIES
        ), "drawn 250x250 images (gpupipe.sources.helpers.dataset_catalog), not photographs"
    make = (
        photos.lfw_like if baselines.WORKLOADS[workload].photos == "lfw" else photos.imagenet_like
    )
    root = make(arguments.data, count)
    return photos.copied(root, _COPIES), f"windows of photographs, {root.name}"


def sweep_contestants(name: str) -> list[str]:
    """Those of a sweep: of threads, no more than there are cores."""
    if name != "threads":
        return _SWEEPS[name]
    most = harness.threads()
    return [c for c in _SWEEPS[name] if int(c.rpartition("=")[2]) <= max(most, _THREADS[0])]


class Schedule:
    """Rounds, sweeps and single runs, the more telling first, as far as the budget goes.

    The result is written after each.
    """

    def __init__(self, arguments: argparse.Namespace, started: float) -> None:
        self._arguments, self._started = arguments, started
        self._longest: dict[str, float] = {}
        self._failed: set[tuple[str, str]] = set()
        data = {
            workload: images_root(workload, arguments)[1] for workload in _WORKLOADS
        }  # before torch: it forks
        self.region = self._decodes_regions()
        self.result: dict[str, Any] = {
            "device": arguments.device,
            "data": data,
            "region_decode_survives": self.region,
        }
        self.result |= {
            "left_out": [],
            "rounds": {w: {} for w in _WORKLOADS},
            "extra": {},
            "sweeps": {},
        }

    def _decodes_regions(self) -> bool:
        need_gpu(self._arguments.device)
        from gpupipe.runtime.capability_probe import can_decode_regions

        return self._arguments.device == "cpu" or can_decode_regions(0)

    def run(self) -> None:
        for kind, what, work in self._tasks():
            self._attempt(kind, what, work)
            harness.write("gpu", self._whole(), self._arguments)
        _report(self._whole(), harness.write("gpu", self._whole(), self._arguments))

    def _tasks(self) -> Iterator[tuple[str, str, Callable[[float], None]]]:
        """Kind (those of a kind take about as long), title, work."""
        affine, train = _WORKLOADS
        numbers = range(1, self._arguments.rounds + 1)
        rounds = [
            (f"round, {w}", f"round {n}, {w}", partial(self._round, w))
            for n in numbers
            for w in _WORKLOADS
        ]
        yield from rounds[: _SURE_ROUNDS * len(_WORKLOADS)]
        sweeps = [
            ("load", affine),
            ("huffman", train),
            ("threads", affine),
            ("threads", train),
            ("decode", train),
        ]
        for name, workload in sweeps[: 2 if self._arguments.quick else None]:
            yield (
                f"sweep, {name}",
                f"sweep of {name}, {workload}",
                partial(self._sweep, name, workload),
            )
        for contestant, workload in self._extras():
            yield (
                f"single, {contestant[:5]}",
                f"{contestant}, {workload}",
                partial(self._single, contestant, workload),
            )
        yield from rounds[_SURE_ROUNDS * len(_WORKLOADS) :]

    def _extras(self) -> list[tuple[str, str]]:
        affine, train = _WORKLOADS
        plain = [
            ("hand-written", affine),
            ("hand-written-region" if self.region else "hand-written", train),
        ]
        if self._arguments.quick:
            return [("torchvision-tensor-1", train)]
        return plain + [
            (f"torchvision-tensor-{n}", w)
            for n in dict.fromkeys((harness.threads(), 8))
            for w in (train, affine)
        ]

    def _attempt(self, kind: str, what: str, work: Callable[[float], None]) -> None:
        """Do it where as much time is left as the longest of its kind took."""
        left = self._left()
        if left < self._longest.get(kind, _SOME_SECONDS):
            self._leave_out(f"{what}: no time left")
            return
        began = time.monotonic()
        work(left)
        self._longest[kind] = max(self._longest.get(kind, 0.0), time.monotonic() - began)

    def _left(self) -> float:
        return float(self._arguments.budget) - (time.monotonic() - self._started)

    def _contestants(self, workload: str) -> list[str]:
        """Those of the rounds. Where regions are decoded, their own ceiling is what counts."""
        if workload == "imagenet_train" and self.region:
            return [
                "gpupipe",
                "hand-written-region-fancy",
                "decode-only-region-fancy",
                "hand-written-fancy",
            ]
        return ["gpupipe", "hand-written-fancy", "decode-only-fancy"]

    def _round(self, workload: str, _left: float) -> None:
        """All contestants in turn. One that fails, or has no time, takes no part in any round."""
        rounds = self.result["rounds"][workload]
        for name in self._contestants(workload):
            if (name, workload) in self._failed:
                continue
            try:
                found = self._fresh(name, workload)
            except RuntimeError as e:
                self._failed.add((name, workload))
                rounds.pop(name, None)
                self._leave_out(f"{name} in the rounds, {workload}: {self._why(str(e))}")
                continue
            rounds.setdefault(name, []).append(found)
            harness.say(f"{workload}: {name} {found['images_per_second']:,.0f} images/s")

    def _single(self, contestant: str, workload: str, _left: float) -> None:
        try:
            found = self._fresh(contestant, workload)
        except RuntimeError as e:
            self._leave_out(f"{contestant}, {workload}: {self._why(str(e))}")
            return
        self.result["extra"].setdefault(workload, {})[contestant] = [found]
        harness.say(f"{workload}: {contestant} {found['images_per_second']:,.0f} images/s")

    def _fresh(self, contestant: str, workload: str) -> dict[str, Any]:
        limit = max(1.0, min(_LIMIT_SECONDS[self._arguments.device], self._left()))
        return harness.fresh(_SCRIPT, "--one", contestant, workload, *self._shared(), limit=limit)

    def _sweep(self, name: str, workload: str, left: float) -> None:
        words = ("--sweep", name, workload, *self._shared())
        found, why = harness.fresh_lines(
            _SCRIPT, *words, limit=min(_LIMIT_SECONDS[self._arguments.device], left)
        )
        self.result["sweeps"].setdefault(workload, {})[name] = found
        for line in found:
            harness.say(
                f"{workload}: {line['contestant']} {line['images_per_second']:,.0f} images/s"
            )
        if why:
            self._leave_out(f"sweep of {name}, {workload}, after {len(found)}: {self._why(why)}")

    def _shared(self) -> list[str]:
        return (
            harness.passed_on(self._arguments, "device", "seconds", "images")
            + ["--quick"] * self._arguments.quick
        )

    def _why(self, error: str) -> str:
        """What ended a process: the budget, or `error`."""
        return "no time left" if self._left() <= 1.0 else error

    def _leave_out(self, why: str) -> None:
        harness.say(why)
        self.result["left_out"].append(why)

    def _whole(self) -> dict[str, Any]:
        return (
            self.result
            | judge(self.result["rounds"])
            | {"wall_seconds": time.monotonic() - self._started}
        )


def judge(rounds: dict[str, dict[str, list[dict[str, Any]]]]) -> dict[str, Any]:
    """Ratios and goals of every workload: against the better hand that does the same work, and
    against the decoder that gpupipe uses.
    """
    ratios: dict[str, Any] = {}
    goals: list[dict[str, Any]] = []
    for workload, found in rounds.items():
        own = found.get("gpupipe", [])
        full = {
            name: results for name, results in found.items() if own and len(results) == len(own)
        }
        ratios[workload] = {
            other: round_statistics.ratio(own, full[other]) for other in full if other != "gpupipe"
        }
        hands = [
            (r["median"], other)
            for other, r in ratios[workload].items()
            if other.startswith("hand")
        ]
        ceilings = [
            (r["median"], other)
            for other, r in ratios[workload].items()
            if other.startswith("decode")
        ]
        goals += [
            round_statistics.goal(f"{workload}: gpupipe / {other}", ratio, _TO_HAND)
            for ratio, other in sorted(hands)[:1]
        ]
        goals += [
            round_statistics.goal(f"{workload}: gpupipe / {other}", ratio, _TO_DECODE)
            for ratio, other in ceilings
        ]
    return {"ratios": ratios, "goals": goals}


def _report(result: dict[str, Any], path: Path) -> None:
    for workload, found in result["rounds"].items():
        print(f"\n{workload}: {result['data'][workload]}")
        everyone = found | result["extra"].get(workload, {})
        if everyone:
            round_statistics.print_table(everyone)
        for other, ratio in result["ratios"][workload].items():
            round_statistics.print_ratio(f"gpupipe / {other}", ratio)
        for name, lines in result["sweeps"].get(workload, {}).items():
            rates = ", ".join(
                f"{line['contestant'].partition('@')[2]}: {line['images_per_second']:,.0f}"
                for line in lines
            )
            print(f"  sweep of {name}, images/s: {rates}")
    round_statistics.print_goals(result["goals"])
    for why in result["left_out"]:
        print(f"  left out: {why}")
    print(f"written to {path}")
