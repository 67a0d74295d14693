"""Shards behind a slow wire: the time until each sample came once, and the rate of later epochs.

    pip install litdata mosaicml-streaming webdataset datasets  # in a side environment
    python benchmarks/shards.py  # as root; writes benchmarks/results/shards.json
    python benchmarks/shards.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON; a wire must be up
    python benchmarks/shards.py --one gpupipe imagenet

The same photographs of 500x375 lie in tars of 64 (gpupipe, WebDataset, Hugging Face), in MDS shards
and in LitData's chunks of 16 MB, behind nginx and a wire of --wire MB/s (see shard_wire.py). Each
contestant delivers batches of 128 random crops of 224x224, with as many worker processes or threads
as there are cores, in fresh processes, interleaved. In each round curl fetches the tars too, one
after the other over one connection, and keeps nothing: what the wire itself takes.

Answers, for each: the seconds from the construction of the loader until every sample was delivered
at least once, and how many of them passed before the first byte and after the last one; images a
second of the epochs after that, as many as take --seconds; and the bytes that came over the wire
before and in these epochs. Each of gpupipe's early epochs has the samples that came since the one
before it (cache.epoch: new). The bytecode of gpupipe is written first, as an installation does. A
rival that fails is left out, and the file has its error.

A round of all contestants takes one and a half minutes. The wire takes 10 s for 3,072 photographs,
so what passes before the first byte is a few hundredths of that. With --images 12288, which takes
four times as long, it is a hundredth, as it is with a store of some size.
"""

import argparse
import compileall
import importlib.util
import json
import statistics
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import harness
import peers
import round_statistics
import shard_wire
import torch
from shard_contestants import CONTESTANTS, list_tars, list_urls

_CURL, _OWN = "curl", "gpupipe"
_MAX_SHARE_OF_WIRE, _MIN_LEAD, _MIN_RATIO = 1.05, 1.3, 2.0
_COLUMNS = (
    ("all came, s", "seconds", 1.0, "{:.1f}"),
    ("before, s", "before_first_byte", 1.0, "{:.2f}"),
    ("after, s", "after_last_byte", 1.0, "{:.2f}"),
    ("MB", "first_bytes", 1e-6, "{:.1f}"),
    ("then images/s", "images_per_second", 1.0, "{:,.0f}"),
    ("MB an epoch", "bytes_per_epoch", 1e-6, "{:.1f}"),
)


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        with tempfile.TemporaryDirectory(dir=arguments.data) as cache:
            print(json.dumps(one(arguments.one[0], arguments, Path(cache))))
        return
    compileall.compile_dir(harness.REPOSITORY / "gpupipe", quiet=1)
    names = [name for name in CONTESTANTS if importlib.util.find_spec(CONTESTANTS[name].module)]
    for name in names:
        peers.prepare(CONTESTANTS[name].peer, arguments)
    shared = harness.passed_on(arguments, "images", "wire", "seconds")
    failed: dict[str, str] = {}

    def run(name: str) -> dict[str, Any]:
        if name == _CURL:
            return time_curl(list_urls(arguments))
        try:
            return harness.fresh(__file__, *shared, "--one", name, "imagenet")
        except RuntimeError as e:
            if name == _OWN:
                raise
            failed[name] = str(e).strip().splitlines()[-1]
            harness.say(f"{name} is left out, since it failed: {e}")
            return {}

    with shard_wire.wire(arguments.data, arguments.wire):
        rounds = harness.interleaved(run, [*names, _CURL], arguments.rounds, "shards")
    curl = rounds.pop(_CURL)
    rounds = {name: found for name, found in rounds.items() if name not in failed}
    result = {
        "rounds": rounds,
        "failed": failed,
        "curl": curl,
        "goals": list_goals(rounds, curl),
        "versions": {name: _find_version(CONTESTANTS[name].module) for name in names},
        "wire_mb": arguments.wire,
        "tar_bytes": sum(path.stat().st_size for path in list_tars(arguments)),
    }
    path = harness.write("shards", result, arguments)
    print_result(rounds, curl)
    round_statistics.print_goals(result["goals"])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=3, seconds=3.0)
    harness.add_number(parser, "--images", 3072, "photographs")
    harness.add_number(parser, "--wire", 20.0, "million bytes a second")
    harness.add_selection(parser, ["imagenet"])
    return harness.parsed(parser, images=256)


def _find_version(module: str) -> str:
    import gpupipe

    package = {"streaming": "mosaicml-streaming"}.get(module, module)
    return gpupipe.__version__ if module == "gpupipe" else version(package)


def one(name: str, arguments: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """One contestant: all samples once, then as many epochs as take --seconds."""
    torch.set_num_threads(1)
    received = shard_wire.count_received()
    began = time.perf_counter()
    arrivals = shard_wire.Arrivals()
    epochs = CONTESTANTS[name].iterate(arguments, cache)
    samples, passes = 0, 0
    while samples < arguments.images:  # a pass that knows no ids has all samples
        samples = next(epochs)
        passes += 1
    seconds = time.perf_counter() - began
    first_byte, last_byte = arrivals.stop()
    first = shard_wire.count_received() - received
    rates: list[float] = []
    again = time.perf_counter()
    while not rates or time.perf_counter() - again < arguments.seconds:
        start = time.perf_counter()
        count = next(epochs)
        assert count == arguments.images, count
        rates.append(count / (time.perf_counter() - start))
    return {
        "seconds": seconds,
        "before_first_byte": first_byte - began,
        "after_last_byte": began + seconds - last_byte,
        "passes": passes,
        "first_bytes": first,
        "images_per_second": statistics.harmonic_mean(rates),
        "rates": rates,
        "bytes_per_epoch": (shard_wire.count_received() - received - first) / len(rates),
    }


def time_curl(urls: list[str]) -> dict[str, Any]:
    """How long curl takes to fetch files one after the other, and how many bytes come."""
    received, began = shard_wire.count_received(), time.perf_counter()
    outputs = [word for url in urls for word in ("-o", "/dev/null", url)]
    subprocess.run(["curl", "-sf", *outputs], check=True)
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "first_bytes": shard_wire.count_received() - received}


def list_goals(
    rounds: dict[str, list[dict[str, Any]]], curl: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What gpupipe should reach: each ratio is the median of those of the rounds."""
    own, rivals = rounds[_OWN], [rounds[name] for name in rounds if name != _OWN]
    if not rivals:
        return []
    seconds = [
        mine["seconds"] / max(_MAX_SHARE_OF_WIRE * wire["seconds"], best / _MIN_LEAD)
        for mine, wire, *others in zip(own, curl, *rivals, strict=True)
        for best in [min(other["seconds"] for other in others)]
    ]
    ratios = [
        mine["images_per_second"] / max(other["images_per_second"] for other in others)
        for mine, *others in zip(own, *rivals, strict=True)
    ]
    wire = f"{_MAX_SHARE_OF_WIRE:g} of the wire's time, or of 1 / {_MIN_LEAD:g} of the best rival's"
    traffic = [mine["bytes_per_epoch"] / mine["first_bytes"] for mine in own]
    return [
        round_statistics.goal(wire, statistics.median(seconds), 1.0, at_most=True),
        round_statistics.goal(
            "later epochs, to the best rival", statistics.median(ratios), _MIN_RATIO
        ),
        round_statistics.goal("traffic of later epochs", max(traffic), 0.001, at_most=True),
    ]


def print_result(rounds: dict[str, list[dict[str, Any]]], curl: list[dict[str, Any]]) -> None:
    """Print medians, and the range of the rounds."""
    print(f"  {'':12}" + "".join(f"{title:>26}" for title, *_ in _COLUMNS))
    for name, found in [*rounds.items(), (_CURL, curl)]:
        cells = [
            _show([result[key] * scale for result in found if key in result], style)
            for _, key, scale, style in _COLUMNS
        ]
        print(f"  {name:12}" + "".join(f"{cell:>26}" for cell in cells))


def _show(values: list[float], style: str) -> str:
    """The median of values, and the smallest and the largest one."""
    if not values:
        return ""
    low, middle, high = map(style.format, (min(values), statistics.median(values), max(values)))
    return middle if low == high else f"{middle} ({low} to {high})"


if __name__ == "__main__":
    main()
