"""Whether a cache that turns over at full rate ever takes more on disk than data.cache.max_bytes.

    python benchmarks/remote_soak.py --seconds 600      # writes benchmarks/results/remote_soak.json
    python benchmarks/remote_soak.py --quick            # a check that it runs

Two workers fetch from an S3 server on loopback as fast as they can, a process trains on what is
there, and one of the workers is killed every few seconds. The cache lies on a file system of its
own (a tmpfs; mounting it takes root), and what that says is used, deleted files that somebody still
holds open included, is looked at a thousand times a second.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import remote_store
import round_statistics

_MAX_BYTES, _SHARD = 60_000_000, 2_000_000
_KILL_SECONDS = 7.0
_LOOK_SECONDS = 0.001
_STEPS = ["decode", {"resize": {"size": [96, 96]}}]


def main() -> None:
    arguments = _arguments()
    if arguments.train:
        return train(json.loads(arguments.train), arguments.seconds)
    harness.prepare(arguments)
    seconds = 10.0 if arguments.quick else arguments.seconds
    root = remote_store.images(arguments.data, 100 if arguments.quick else 1000)
    with (
        remote_store.s3(root, 1 if arguments.quick else 2) as data,
        _disk(arguments.data / "soak") as disk,
    ):
        options = {
            "dir": str(disk / "cache"),
            "max_bytes": _MAX_BYTES // (12 if arguments.quick else 1),
            "low_water": 0.5,
            "workers": 2,
        }
        options["shard_size"] = _SHARD // (8 if arguments.quick else 1)
        found = soak(data | {"cache": options}, disk, seconds)
    goals = [
        round_statistics.goal(
            "most bytes on disk, as a share of max_bytes",
            found["most_bytes"] / options["max_bytes"],
            1.0,
            at_most=True,
        )
    ]
    path = harness.write("remote_soak", found | {"goals": goals}, arguments)
    round_statistics.print_goals(goals)
    print(f"written to {path}")
    return None


def _arguments() -> argparse.Namespace:
    options = harness.options(__doc__)
    harness.add_number(options, "--seconds", 600.0, "how long")
    options.add_argument("--train", help=argparse.SUPPRESS)
    return options.parse_args()


@contextmanager
def _disk(place: Path) -> Iterator[Path]:
    """A file system of its own. Raises CalledProcessError where it cannot be mounted."""
    place.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={4 * _MAX_BYTES}", "tmpfs", str(place)], check=True
    )
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def soak(data: dict[str, Any], disk: Path, seconds: float) -> dict[str, Any]:
    """Train for so long, kill workers, and look at the disk meanwhile."""
    config = json.dumps({"data": data, "pipeline": _STEPS})
    trainer = subprocess.Popen(
        [sys.executable, __file__, "--train", config, "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
    )
    dice, most, looks, kills, next_kill = (
        random.Random(0),
        0,
        0,
        0,
        time.monotonic() + _KILL_SECONDS,
    )
    while trainer.poll() is None:
        most, looks = max(most, _used(disk)), looks + 1
        if time.monotonic() > next_kill:
            killed = _kill_one(Path(data["cache"]["dir"]) / "workers", dice)
            kills, next_kill = kills + killed, time.monotonic() + _KILL_SECONDS * killed
        time.sleep(_LOOK_SECONDS)
    assert trainer.stdout
    if trainer.returncode:
        raise RuntimeError(f"training failed with status {trainer.returncode}")
    found = json.loads(trainer.stdout.read().splitlines()[-1])
    return {
        "most_bytes": most,
        "max_bytes": data["cache"]["max_bytes"],
        "looks": looks,
        "workers_killed": kills,
    } | found


def _used(disk: Path) -> int:
    status = os.statvfs(disk)
    return (status.f_blocks - status.f_bfree) * status.f_frsize


def _kill_one(folder: Path, dice: random.Random) -> int:
    from gpupipe.runtime.files import read_json_object

    alive = (
        [read_json_object(path).get("pid") for path in sorted(folder.glob("*"))]
        if folder.is_dir()
        else []
    )
    alive = [pid for pid in alive if pid]
    if not alive:
        return 0
    os.kill(dice.choice(alive), signal.SIGKILL)
    return 1


def train(config: dict[str, Any], seconds: float) -> None:
    """What the training process does; the last line that it prints is what came of it."""
    import gpupipe
    from gpupipe.cache import maintenance
    from gpupipe.cache.cache_folder import CacheFolder
    from gpupipe.cache.settings import CacheOptions

    end, epochs, images, seen = time.monotonic() + seconds, 0, 0, set()
    with gpupipe.load(config, batch_size=64, ids=True, device="cpu") as loader:
        while time.monotonic() < end:
            for batch in loader:
                images += len(batch["id"])
                seen.update(batch["id"].tolist())
            epochs += 1
        folder = CacheFolder(CacheOptions(**config["data"]["cache"]))
        found = maintenance.read_status(folder)
        published = sum(shard.bytes for shard in folder.commit_log.published.values())
        known = loader.index
        print(
            json.dumps(
                {
                    "seconds": seconds,
                    "epochs": epochs,
                    "images_trained": images,
                    "images_per_second": images / seconds,
                    "distinct_images": len(seen),
                    "images_of_the_data_set": len(known),
                    "generation": found.generation,
                    "shards_evicted": found.evicted,
                    "hit_rate": found.hit_rate,
                    "bytes_published": published,
                    "published_mb_per_second": published / seconds / 1e6,
                }
            )
        )


if __name__ == "__main__":
    main()
