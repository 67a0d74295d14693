"""Runs an engine on a folder of mutants among good files, in a process that a file may end."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from image_mutants import FORMATS, Mutant, mutants
from image_seeds import SUFFIXES, seed
from PIL import Image

from helpers.forked_python import executable

ENGINES: dict[str, dict[str, Any]] = {
    "dali": {"engine": "dali", "threads": 2},
    "dataloader, torchvision": {"engine": "dataloader", "workers": 0, "decoder": "torchvision"},
    "dataloader, pil": {"engine": "dataloader", "workers": 0, "decoder": "pil"},
}
PROGRAM = Path(__file__).with_name("deliver_images.py")
BATCH_SIZE = 64
MEMORY_MIB = 2048
SIDE = 48
STEPS = ({"center_crop": {"size": SIDE}}, {"resize": {"size": [SIDE, SIDE]}})
LIMITS = (1_000_000, 4_000_000)
"""Of data.max_pixels. Bombs of a million pixels are within both."""
FOLDER_SIZE = 2000
_LIMIT_SECONDS = 600.0
_MAX_CULPRITS = 5


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
    root, first = where / "all", number * FOLDER_SIZE
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
            executable(),
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
    """The mutants without which the process would not have died, by halves; none if halves pass.

    Those that are found within a time limit.
    """
    found: list[str] = []
    parts = [[m.name for m in folder.mutants]]
    end = time.monotonic() + _LIMIT_SECONDS
    while parts and len(found) < _MAX_CULPRITS and time.monotonic() < end:
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
