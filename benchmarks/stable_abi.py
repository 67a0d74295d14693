"""What the stable ABI of the extensions costs: one build for CPython 3.11 and newer, beside one
for this Python alone.

    # STABLE and SINGLE are copies of the repository; in that of SINGLE, setup.py says
    # _HAS_STABLE_ABI = False. Then in both: python setup.py build_ext --inplace
    python benchmarks/stable_abi.py STABLE SINGLE    # 2 minutes; writes results/stable_abi.json

Method: `gpupipe run` on one thread in fresh processes, in turns. The ratio is that of the CPU time
of an image, round by round: the calls between Python and the extensions are most often where
images are smallest.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import harness
import photos

_SETTINGS = ["device=cpu", "engine=cpu", "threads=1", "batch_size=64", "--repeats", "1"]
_BATCHES = {"lfw": 40, "imagenet_train": 12}
_MAKE = {"lfw": photos.lfw_like, "imagenet_train": photos.imagenet_like}
_IMAGES = 1000


def main() -> None:
    parser = harness.contest(__doc__, rounds=3, seconds=0.0)
    parser.add_argument("stable", type=Path, help="a copy with extensions for the stable ABI")
    parser.add_argument("single", type=Path, help="a copy with extensions for this Python alone")
    arguments = harness.parsed(parser)
    harness.prepare(arguments)
    copies = {"stable": arguments.stable.resolve(), "single": arguments.single.resolve()}
    results: dict[str, Any] = {}
    for config, batches in _BATCHES.items():
        data = _MAKE[config](arguments.data, _IMAGES)
        words = [config, f"data.root={data}", *_SETTINGS, "--batches", str(batches)]
        rounds = harness.interleaved(
            lambda name, words=words: _run(copies[name], words),  # type: ignore[misc]
            copies,
            arguments.rounds,
            config,
        )
        pairs = zip(rounds["stable"], rounds["single"], strict=True)
        ratios = [a["cpu_us"] / b["cpu_us"] for a, b in pairs]
        ratio = {"median": median(ratios), "min": min(ratios), "max": max(ratios)}
        results[config] = {"rounds": rounds, "cpu_ratio": ratio}
        print(f"{config}: CPU time, stable / single: {ratio}")
    print(f"written to {harness.write('stable_abi', {'configs': results}, arguments)}")


def _run(copy: Path, words: list[str]) -> dict[str, float]:
    """Return the rate and the CPU time of an image, of `gpupipe run` from a copy."""
    done = subprocess.run(
        [sys.executable, "-m", "gpupipe", "run", *words, "--json", "-"],
        check=True,
        capture_output=True,
        text=True,
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy), "GPUPIPE_KERNELS": "on"},
    )
    (measured,) = json.loads(done.stdout)["passes"]
    return {
        "images_per_second": measured["images"] / measured["seconds"],
        "cpu_us": 1e6 * measured["cpu_seconds"] / measured["images"],
    }


if __name__ == "__main__":
    main()
