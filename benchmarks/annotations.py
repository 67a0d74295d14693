"""A large COCO file: how fast it is read, and what it costs each further process.

    # about 3 minutes, 2 GB of memory, 4 GB of disk; writes benchmarks/results/annotations.json
    python benchmarks/annotations.py
    python benchmarks/annotations.py --quick  # a check that it runs

Draws a COCO file of 1,000,000 images and 16,000,000 boxes (3 GB), and answers: seconds and peak
memory of the first load, which reads it; seconds of the second load, which opens the saved index,
while none of the images exists; and the private memory (USS) that the index costs a process while
another process has it open. --keep leaves the file for another run.
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import round_statistics

_IMAGES = 1_000_000
_BOXES_PER_IMAGE = 16
_IMAGES_AT_ONCE = 10_000
_DRAWN = 4096
"""How many different boxes there are."""
_LIMIT_SECONDS = 280.0
_BATCHES = 200
_SETTLE_SECONDS = 2.5
"""An index of a file that changed in the last two seconds is not saved."""


def main() -> None:
    parser = harness.options(__doc__)
    parser.add_argument("--images", type=int, default=_IMAGES, help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="leave the drawn file and its index")
    parser.add_argument("--load", choices=["read", "open", "hold"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.images = min(arguments.images, 20_000)
    harness.prepare(arguments)
    os.environ["GPUPIPE_CACHE"] = str(arguments.data / "annotations-cache")
    file = arguments.data / f"instances-{arguments.images}.json"
    if arguments.load:
        print(json.dumps(load(file, arguments.load)), flush=True)
        return
    arguments.data.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        draw(file, arguments.images)
    try:
        found = measure(file, arguments)
    finally:
        if not arguments.keep:
            file.unlink()
            for path in Path(os.environ["GPUPIPE_CACHE"], "index").glob("*.idx"):
                path.unlink()
    path = harness.write("annotations", found, arguments)
    report(found)
    print(f"written to {path}")


def draw(file: Path, images: int) -> None:
    """Write a COCO file as cocodataset.org has them, with a short polygon for each box."""
    draw = random.Random(0)
    tails = []
    for n in range(_DRAWN):
        left, top = draw.uniform(0, 500), draw.uniform(0, 350)
        width, height = draw.uniform(2, 140), draw.uniform(2, 130)
        corners = [left, top, left + width, top, left + width, top + height]
        polygon = ",".join(f"{number:.2f}" for number in corners)
        tails.append(
            f'"category_id": {1 + n % 80},"bbox": [{left:.2f},{top:.2f},{width:.2f},{height:.2f}],'
            f'"area": {width * height / 2:.4f},"iscrowd": {int(n % 97 == 0)},'
            f'"segmentation": [[{polygon}]]'
        )
    making = file.with_name(f"{file.name}.{os.getpid()}")
    with making.open("w") as stream:
        stream.write('{"info": {"year": 2017},"images": [\n')
        for first in range(0, images, _IMAGES_AT_ONCE):
            numbers = range(first, min(first + _IMAGES_AT_ONCE, images))
            stream.write(",\n" if first else "")
            stream.write(
                ",\n".join(
                    f'{{"file_name": "{n:012}.jpg","height": 480,"width": 640,"id": {n}}}'
                    for n in numbers
                )
            )
        stream.write('],"annotations": [\n')
        for first in range(0, images, _IMAGES_AT_ONCE):
            numbers = range(first, min(first + _IMAGES_AT_ONCE, images))
            stream.write(",\n" if first else "")
            stream.write(
                ",\n".join(
                    f'{{"id": {k},"image_id": {n},{tails[(k * 7919) % _DRAWN]}}}'
                    for n in numbers
                    for k in range(n * _BOXES_PER_IMAGE, (n + 1) * _BOXES_PER_IMAGE)
                )
            )
        categories = [{"id": n, "name": f"class {n}"} for n in range(1, 81)]
        stream.write(f'],"categories": {json.dumps(categories)}}}')
    making.rename(file)


def measure(file: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Load the file in fresh processes, which each print one line of JSON."""
    options = harness.passed_on(arguments, "images")
    script = str(Path(__file__).resolve())
    time.sleep(_SETTLE_SECONDS)
    read = harness.fresh(script, *options, "--load", "read", limit=_LIMIT_SECONDS)
    opened = [harness.fresh(script, *options, "--load", "open") for _ in range(3)]
    holder = subprocess.Popen(
        [sys.executable, script, *options, "--load", "hold"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    further = harness.fresh(script, *options, "--load", "open")
    holder.communicate()
    assert {o["digest"] for o in [*opened, further]} == {read["digest"]}, "another index was opened"
    boxes = arguments.images * _BOXES_PER_IMAGE
    seconds = sorted(o["seconds"] for o in opened)[1]
    share = boxes / (_IMAGES * _BOXES_PER_IMAGE)
    goals = [
        round_statistics.goal(what, value, bound, at_most=True)
        for what, value, bound in (
            ("seconds to read it", read["seconds"], 180 * max(share, 0.1)),
            ("GiB of peak memory", read["peak_bytes"] / 2**30, 8),
            ("seconds to open the saved index", seconds, 1),
            ("MB of private memory of a further process", further["private_bytes"] / 1e6, 50),
        )
    ]
    return {
        "images": arguments.images,
        "boxes": boxes,
        "file_bytes": file.stat().st_size,
        "read": read,
        "opened": opened,
        "further_process": further,
        "goals": goals,
    }


def load(file: Path, how: str) -> dict[str, Any]:
    """Load the index in this process, as a loader does, and use some of its rows."""
    from gpupipe.dataset.annotation_columns import take_annotations
    from gpupipe.sources.coco import Coco

    private, started = private_bytes(), time.perf_counter()
    index = Coco(root=file.parent, annotations=(file,)).index()
    seconds = time.perf_counter() - started
    rng, digest = np.random.default_rng(0), hashlib.blake2b(index.fingerprint.encode())
    for _ in range(_BATCHES):
        batch = take_annotations(index.annotations, rng.integers(0, len(index), 64))
        digest.update(batch["boxes"].values.tobytes())
    found = {
        "seconds": seconds,
        "private_bytes": private_bytes() - private,
        "peak_bytes": peak_bytes(),
        "rows": len(index.annotations["boxes"].values),
        "digest": digest.hexdigest(),
    }
    if how == "hold":
        print("ready", flush=True)
        sys.stdin.read()
    return found


def private_bytes() -> int:
    """The memory that this process does not share: its USS."""
    return sum(
        1024 * int(line.split()[1])
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()
        if line.startswith(("Private_Clean", "Private_Dirty"))
    )


def peak_bytes() -> int:
    """The most memory that this process has had, with the mapped pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def report(found: dict[str, Any]) -> None:
    print(
        f"{found['images']:,} images, {found['boxes']:,} boxes, {found['file_bytes'] / 1e9:.2f} GB:"
    )
    round_statistics.print_goals(found["goals"])


if __name__ == "__main__":
    main()
