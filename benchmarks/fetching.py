"""What a download worker takes of a core while it fetches shards at 500 MB/s.

    python benchmarks/fetching.py  # half a minute; writes benchmarks/results/fetching.json
    python benchmarks/fetching.py --quick  # a check that it runs
    # one client, one process, one line of JSON; nginx must run
    python benchmarks/fetching.py --one obstore imagenet

Tars of 3,072 photographs (191 MB) lie behind nginx on loopback. One worker fetches them into a
fresh cache, in parts of 8 MB: it writes and syncs them, compares their versions, indexes their
samples and hashes their bytes. It reads with obstore, or with fsspec, as where obstore is not
installed. Its processor time counts from the first shard to the last one, so that its start does
not. The kernel's time to find memory for the files is a part of it, and differs between machines.
"""

import argparse
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import photos
import round_statistics
import shard_wire

_ADDRESS = "127.0.0.1:8913"
_RATE = 500e6
_PHOTOGRAPHS = 3072
_MAX_CORES = 1.0
_CLIENTS: dict[str, dict[str, Any]] = {"obstore": {}, "fsspec": {"block_size": 1 << 20}}
"""The storage options with which a worker reads by each client."""


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        with tempfile.TemporaryDirectory(dir=arguments.data) as cache:
            print(json.dumps(one(arguments.one[0], arguments, Path(cache))))
        return
    _prepare(arguments)
    shared = harness.passed_on(arguments, "shards")

    def run(name: str) -> dict[str, Any]:
        return harness.fresh(__file__, *shared, "--one", name, "imagenet")

    with _serve(arguments.data):
        rounds = harness.interleaved(run, _CLIENTS, arguments.rounds, "fetching")
    goals = [
        round_statistics.goal(
            f"cores at 500 MB/s, {name}",
            round_statistics.median(found, "cores_at_500_mb"),
            _MAX_CORES,
            at_most=True,
        )
        for name, found in rounds.items()
    ]
    result = {"rounds": rounds, "goals": goals}
    path = harness.write("fetching", result, arguments)
    for name, found in rounds.items():
        shown = [round_statistics.median(found, k) for k in ("mb_per_second", "cores_at_500_mb")]
        print(f"  {name:10}{shown[0]:6,.0f} MB/s, {shown[1]:.2f} cores at 500 MB/s")
    round_statistics.print_goals(goals)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=3, seconds=1.0)
    parser.add_argument("--shards", type=int, default=8, help="tars (%(default)s)")
    harness.add_selection(parser, ["imagenet"])
    return harness.parsed(parser, shards=3)


def _folder(arguments: argparse.Namespace) -> Path:
    folder: Path = arguments.data / f"fetching-{arguments.shards}"
    return folder


def _prepare(arguments: argparse.Namespace) -> None:
    """Write one tar, and link it under other names: the store has as many objects."""
    folder = _folder(arguments)
    if folder.exists():
        return
    folder.mkdir(parents=True)
    first = folder / "0000.tar"
    paths = sorted(photos.imagenet_like(arguments.data, _PHOTOGRAPHS).glob("*/*.jpg"))
    with tarfile.open(first, "w") as archive:
        for n, path in enumerate(paths):
            archive.add(path, f"{n:08}.jpg")
    for n in range(1, arguments.shards):
        os.link(first, folder / f"{n:04}.tar")


@contextmanager
def _serve(root: Path) -> Iterator[None]:
    """Serve a folder with nginx."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        config = Path(folder) / "nginx.conf"
        text = shard_wire.CONFIG.format(folder=folder, root=root.resolve(), listen=_ADDRESS)
        config.write_text(text)
        with subprocess.Popen(["nginx", "-c", str(config)]) as server:
            try:
                yield
            finally:
                server.terminate()


def one(name: str, arguments: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """Fill a fresh cache with one worker, and read what it took."""
    from gpupipe.cache.cache_folder import CacheFolder
    from gpupipe.cache.worker_pool import WorkerPool
    from gpupipe.sources.remote import Remote

    source = Remote(
        url=f"http://{_ADDRESS}/{_folder(arguments).name}",
        storage_options=_CLIENTS[name],
        shards="*.tar",
        label=None,
        cache={"dir": str(cache / "cache"), "max_bytes": "20GB"},
    )
    source.index()
    folder = CacheFolder(source.cache)
    pool = WorkerPool(source.dataset, source.cache, 1, "serve")
    try:
        (process,) = pool._processes
        marks = []
        while len(marks) < arguments.shards:
            folder.commit_log.refresh()
            while len(marks) < folder.commit_log.generation:
                marks.append((time.perf_counter(), *_read_times(process.pid)))
            time.sleep(0.001)
        shards = folder.commit_log.live_shards().values()
    finally:
        pool.stop()
        shutil.rmtree(cache / "cache")
    seconds, user, system = (b - a for a, b in zip(marks[0], marks[-1], strict=True))
    count = sum(shard.bytes for shard in shards) * (len(marks) - 1) / len(marks)
    return {
        "mb_per_second": count / seconds / 1e6,
        "cores": (user + system) / seconds,
        "cores_at_500_mb": (user + system) / count * _RATE,
        "user_seconds": user,
        "system_seconds": system,
        "bytes": count,
    }


def _read_times(process: int) -> tuple[float, float]:
    """Return the user and system seconds of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    tick = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / tick, int(fields[12]) / tick


if __name__ == "__main__":
    main()
