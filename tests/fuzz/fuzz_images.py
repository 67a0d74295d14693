"""Fuzzes the decoding of image files: mutants among good files, on each engine, in processes that a
file may end.

    # 10,000 mutants, about 7 minutes on 2 cores; writes benchmarks/results/fuzz_images.json
    python tests/fuzz/fuzz_images.py
    # good files cut from FOLDER/*/*.jpg
    python tests/fuzz/fuzz_images.py --count 1000 --out /tmp/fuzz.json --photographs FOLDER

Every good file has to come once in each of two epochs, with the pixels that it has in a run on good
files alone. A mutant has to come in both epochs with the same pixels, or in none and be listed. A
process that dies, hangs or takes 2 GB is a finding, and the mutants that make it do so are looked
for.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from image_mutants import FORMATS, Mutant, mutants
from image_seeds import SUFFIXES, seed
from PIL import Image

ENGINES: dict[str, dict[str, Any]] = {
    "dali": {"engine": "dali", "threads": 2},
    "dataloader, torchvision": {"engine": "dataloader", "workers": 0, "decoder": "torchvision"},
    "dataloader, pil": {"engine": "dataloader", "workers": 0, "decoder": "pil"},
}
RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz_images.json"
PROGRAM = Path(__file__).with_name("deliver_images.py")
BATCH_SIZE = 64
MEMORY_MIB = 2048
SIDE = 48
STEPS = ({"center_crop": {"size": SIDE}}, {"resize": {"size": [SIDE, SIDE]}})
LIMITS = (1_000_000, 4_000_000)
"""Of data.max_pixels. Bombs of a million pixels are within both."""
_FOLDER = 2000
_LIMIT_SECONDS = 600.0
_MOST_CULPRITS = 5
_KINDS = ("by all", "by none", "by some", "cropped, and more than 1 level apart")


@dataclass
class Run:
    """What one engine made of one folder.

    delivered: pixels by name. findings: what is wrong, in a line each.
    """

    delivered: dict[str, np.ndarray] = field(default_factory=dict)
    bad: dict[str, str] = field(default_factory=dict)
    memory_mib: float = 0.0
    findings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Folder:
    """Mutants and good files. root has both; `alone` has the good files alone."""

    mutants: list[Mutant]
    good: list[str]
    root: Path
    step: dict[str, Any]
    max_pixels: int


def make_folder(
    where: Path, number: int, count: int, photographs: Sequence[Image.Image] = ()
) -> Folder:
    """`count` mutants from number * 2,000 on, and a quarter as many good files."""
    max_pixels = LIMITS[number % len(LIMITS)]
    root, first = where / "all", number * _FOLDER
    (root / "class").mkdir(parents=True)
    (where / "alone" / "class").mkdir(parents=True)
    made = list(mutants(range(first, first + count), max_pixels, photographs))
    for mutant in made:
        (root / "class" / mutant.name).write_bytes(mutant.content)
    good = []
    for n in range(max(count // 4, 1)):
        whole = seed(FORMATS[n % len(FORMATS)], np.random.default_rng([13, first + n]), photographs)
        good.append(f"good_{n:05}.{SUFFIXES[whole.format]}")
        for folder in (root, where / "alone"):
            (folder / "class" / good[-1]).write_bytes(whole.content)
    return Folder(
        [m._replace(content=b"") for m in made],
        good,
        root,
        STEPS[number // len(LIMITS) % len(STEPS)],
        max_pixels,
    )


def fuzz(folder: Folder, engine: str) -> Run:
    """One engine on one folder, compared with the good files alone."""
    alone = _run(folder, engine, folder.root.with_name("alone"))
    both = _run(folder, engine, folder.root)
    if isinstance(alone, str) or isinstance(both, str):
        culprits = [] if isinstance(alone, str) else _culprits(folder, engine)
        return Run(
            findings=[
                f"{engine}: {alone if isinstance(alone, str) else both}; culprits: "
                f"{', '.join(culprits) or 'not found'}"
            ]
        )
    both.findings += [f"{engine}: of good files alone, {said}" for said in alone.findings]
    if both.memory_mib > MEMORY_MIB:
        both.findings.append(f"{engine}: {both.memory_mib:,.0f} MiB at batch size {BATCH_SIZE}")
    for name in folder.good:
        if name not in both.delivered:
            both.findings.append(
                f"{engine}: {name}, a good file, is not delivered: "
                f"{both.bad.get(name, 'not listed either')}"
            )
        elif not np.array_equal(both.delivered[name], alone.delivered.get(name)):
            both.findings.append(
                f"{engine}: {name}, a good file, has other pixels beside mutants than without"
            )
    lost = {m.name for m in folder.mutants} - set(both.delivered) - set(both.bad)
    both.findings += [f"{engine}: {name} is neither delivered nor listed" for name in sorted(lost)]
    return both


def _run(folder: Folder, engine: str, root: Path) -> Run | str:
    """What a process of its own made of a folder of images, or how it ended."""
    options = ENGINES[engine] | {
        "batch_size": BATCH_SIZE,
        "step": folder.step,
        "max_pixels": folder.max_pixels,
    }
    with tempfile.TemporaryDirectory(dir=folder.root.parent) as out:
        command = [
            sys.executable,
            "-W",
            "ignore",
            str(PROGRAM),
            str(root),
            json.dumps(options),
            out,
        ]
        environment = os.environ | {"GPUPIPE_CACHE": f"{out}/cache"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT_SECONDS,
                check=False,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {_LIMIT_SECONDS:g} s"
        if done.returncode:
            return f"exit code {done.returncode}: {done.stderr.strip()[-600:]}"
        said = json.loads((Path(out) / "epochs.json").read_text())
        pixels = np.fromfile(Path(out) / "pixels", np.uint8).reshape(-1, 3, SIDE, SIDE)
    return checked(said, pixels)


def checked(said: dict[str, Any], pixels: np.ndarray) -> Run:
    """What was delivered, with what is wrong with it whatever the files are."""
    first, second = (dict(epoch) for epoch in said["epochs"])
    names = [name for name, _ in said["epochs"][0]]
    findings = [
        f"{name} is delivered {n} times in an epoch"
        for epoch in said["epochs"]
        for name, n in Counter(n for n, _ in epoch).items()
        if n > 1
    ]
    findings += [
        f"{name} is delivered and listed: {said['bad'][name]}"
        for name in sorted({*first, *second} & {*said["bad"]})
    ]
    findings += [f"{name} is delivered in one epoch alone" for name in sorted({*first} ^ {*second})]
    findings += [
        f"{name} has other pixels in another epoch"
        for name in sorted({*first} & {*second})
        if first[name] != second[name]
    ]
    if said["times_listed"] != len(said["bad"]):
        findings.append(f"{len(said['bad'])} files are listed {said['times_listed']} times")
    return Run(
        dict(zip(names, pixels, strict=True)), said["bad"], said["peak_memory_mib"], findings
    )


def _culprits(folder: Folder, engine: str) -> list[str]:
    """The mutants without which the process would not have died, by halves; none if halves pass."""
    found: list[str] = []
    parts = [[m.name for m in folder.mutants]]
    while parts and len(found) < _MOST_CULPRITS:
        names = parts.pop()
        with tempfile.TemporaryDirectory(dir=folder.root.parent) as root:
            inner = Path(root) / "class"
            inner.mkdir()
            for name in [*names, *folder.good[:5]]:
                shutil.copy(folder.root / "class" / name, inner)
            failed = isinstance(_run(folder, engine, Path(root)), str)
        if failed and len(names) == 1:
            found += names
        elif failed:
            parts += [names[len(names) // 2 :], names[: len(names) // 2]]
    return found


def compare(folder: Folder, runs: dict[str, Run]) -> dict[str, Any]:
    """What the engines do with the same mutants, by damage: delivered by all, by none, by some; and
    with other pixels.

    Pixels are compared where they are cropped: resizing itself differs between DALI and
    torchvision.
    """
    is_cropped = "center_crop" in folder.step
    rows: dict[str, Counter[str]] = {}
    for mutant in folder.mutants:
        delivered = [
            run.delivered[mutant.name] for run in runs.values() if mutant.name in run.delivered
        ]
        kind = "by all" if len(delivered) == len(runs) else "by some" if delivered else "by none"
        row = rows.setdefault(f"{mutant.format}, {mutant.damage}", Counter())
        row[kind] += 1
        apart = max(
            (int(np.abs(image.astype(int) - delivered[0]).max()) for image in delivered), default=0
        )
        row["cropped, and more than 1 level apart"] += is_cropped and apart > 1
    return {"good_apart": _good_apart(folder, runs) if is_cropped else 0, "rows": rows}


def _good_apart(folder: Folder, runs: dict[str, Run]) -> int:
    """How many levels apart the engines' pixels of good files are at most."""
    images = [
        [run.delivered[name] for run in runs.values() if name in run.delivered]
        for name in folder.good
    ]
    return max(
        (
            int(np.abs(a.astype(int) - b).max())
            for a, *others in filter(None, images)
            for b in others
        ),
        default=0,
    )


def photographs(folder: Path | None) -> list[Image.Image]:
    """The JPEGs of a folder of folders, decoded, at half their size."""
    if folder is None:
        return []
    found = [Image.open(path).convert("RGB").reduce(2) for path in sorted(folder.glob("*/*.jpg"))]
    return [image for image in found if min(image.size) > 100]


def result(seconds: float, every: list[tuple[Folder, dict[str, Run]]]) -> dict[str, Any]:
    """The JSON of all folders."""
    compared = [compare(folder, runs) for folder, runs in every]
    by_kind: dict[str, Counter[str]] = {}
    for found in compared:
        for name, row in found["rows"].items():
            by_kind.setdefault(name, Counter()).update(row)
    engines = {
        name: {
            "mutants_delivered": sum(
                sum(m.name in runs[name].delivered for m in folder.mutants)
                for folder, runs in every
            ),
            "mutants_listed": sum(
                sum(m.name in runs[name].bad for m in folder.mutants) for folder, runs in every
            ),
            "good_files_delivered": sum(
                sum(g in runs[name].delivered for g in folder.good) for folder, runs in every
            ),
            "peak_memory_mib": max(runs[name].memory_mib for _, runs in every),
        }
        for name in ENGINES
    }
    return {
        "mutants": sum(len(folder.mutants) for folder, _ in every),
        "good_files": sum(len(folder.good) for folder, _ in every),
        "epochs": 2,
        "batch_size": BATCH_SIZE,
        "max_pixels": list(LIMITS),
        "seconds": seconds,
        "findings": [said for _, runs in every for run in runs.values() for said in run.findings],
        "engines": engines,
        "good_files_cropped_at_most_levels_apart": max(found["good_apart"] for found in compared),
        "mutants_delivered": {kind: sum(row[kind] for row in by_kind.values()) for kind in _KINDS},
        "by_format_and_damage": {name: dict(row) for name, row in sorted(by_kind.items())},
    }


def run(
    count: int, jobs: int, photographs: Sequence[Image.Image], per_folder: int = _FOLDER
) -> list[tuple[Folder, dict[str, Run]]]:
    """All engines on so many mutants, `jobs` processes at a time."""
    every = []
    for number, first in enumerate(range(0, count, per_folder)):
        with (
            tempfile.TemporaryDirectory(prefix="fuzz-images-") as where,
            ThreadPoolExecutor(jobs) as threads,
        ):
            folder = make_folder(Path(where), number, min(per_folder, count - first), photographs)
            runs = dict(
                zip(
                    ENGINES,
                    threads.map(lambda engine, f=folder: fuzz(f, engine), ENGINES),
                    strict=True,
                )
            )
            every.append((folder, runs))
            for said in [said for found in runs.values() for said in found.findings]:
                print(said, file=sys.stderr, flush=True)
            figures = "; ".join(
                f"{name} {len(r.bad)} listed, {r.memory_mib:,.0f} MiB" for name, r in runs.items()
            )
            print(
                f"folder {number}, of {len(folder.mutants)} mutants: {figures}",
                file=sys.stderr,
                flush=True,
            )
    return every


def main() -> int:
    from gpupipe.bench.machine import machine

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=10_000, help="mutants (default: %(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=2, help="processes at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--photographs", type=Path, help="a folder of folders of JPEGs, in place of drawn images"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULT, help="the JSON file (default: %(default)s)"
    )
    arguments = parser.parse_args()
    started = time.monotonic()
    every = run(arguments.count, arguments.jobs, photographs(arguments.photographs))
    found = {
        "benchmark": "fuzz_images",
        "of_photographs": arguments.photographs is not None,
        "machine": machine(),
    }
    found |= result(round(time.monotonic() - started), every)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(
        json.dumps(
            {key: found[key] for key in ("mutants", "findings", "engines", "mutants_delivered")},
            indent=1,
        )
    )
    return bool(found["findings"])


if __name__ == "__main__":
    sys.exit(main())
