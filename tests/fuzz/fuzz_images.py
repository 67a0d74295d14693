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

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from image_runs import BATCH_SIZE, ENGINES, FOLDER_SIZE, LIMITS, Folder, Run, fuzz, make_folder
from PIL import Image

RESULT = Path(__file__).parents[2] / "benchmarks" / "results" / "fuzz_images.json"
_KINDS = ("by all", "by none", "by some", "cropped, and more than 1 level apart")


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
    count: int, jobs: int, photographs: Sequence[Image.Image], per_folder: int = FOLDER_SIZE
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
