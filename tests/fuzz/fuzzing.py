"""Runs a function on made-up bytes: guided by coverage with atheris where that is installed, else
on seeds with mistakes in them.
"""

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

Target = Callable[[bytes], bool]
"""Takes an input, says whether it was taken for good, and raises where something is wrong."""


def damaged(seed: bytes, rng: np.random.Generator) -> bytes:
    """A seed with a few mistakes: bytes changed, bits turned, parts cut out, doubled, or cut
    off.
    """
    data = bytearray(seed)
    for _ in range(int(rng.integers(0, 5))):
        place = int(rng.integers(0, len(data) + 1))
        length = int(rng.integers(0, 9))
        kind = rng.integers(0, 5)
        if kind == 0:
            data[place : place + length] = rng.bytes(length)
        elif kind == 1 and place < len(data):
            data[place] ^= 1 << int(rng.integers(0, 8))
        elif kind == 2:
            del data[place : place + length]
        elif kind == 3:
            data[place:place] = data[place : place + length]
        elif kind == 4:
            del data[place:]
    return bytes(data)


def mistakes(target: Target, seeds: list[bytes], seconds: float) -> tuple[int, int]:
    """How many inputs were run, and how many of them were taken."""
    rng, runs, taken, end = np.random.default_rng(0), 0, 0, time.monotonic() + seconds
    for seed in seeds:
        runs, taken = runs + 1, taken + target(seed)
    while time.monotonic() < end:
        runs, taken = runs + 1, taken + target(damaged(seeds[int(rng.integers(len(seeds)))], rng))
    return runs, taken


def fuzz(target: Target, seeds: list[bytes], seconds: float) -> None:
    """For so many seconds; the process ends with a traceback and the input where something is
    wrong, and else says how many inputs were run.
    """
    os.environ["GPUPIPE_CACHE"] = tempfile.mkdtemp(prefix="fuzz-cache-")
    if importlib.util.find_spec("atheris") is None:
        runs, taken = mistakes(target, seeds, seconds)
        print(f"{runs:,} inputs, of which {taken:,} were taken; nothing found")
        return
    import atheris

    corpus = Path(tempfile.mkdtemp(prefix="fuzz-corpus-"))
    for n, seed in enumerate(seeds):
        (corpus / str(n)).write_bytes(seed)

    def run(data: bytes) -> None:
        target(data)

    for name, module in list(sys.modules.items()):
        if name.startswith(("gpupipe.formats", "gpupipe.sources", "gpupipe.array")):
            for what, found in list(vars(module).items()):
                if (
                    callable(found)
                    and getattr(found, "__module__", "") == name
                    and hasattr(found, "__code__")
                ):
                    setattr(module, what, atheris.instrument_func(found))
    atheris.Setup(
        [
            sys.argv[0],
            str(corpus),
            f"-max_total_time={int(seconds)}",
            "-print_final_stats=1",
            "-rss_limit_mb=4096",
        ],
        run,
    )
    atheris.Fuzz()
