"""How fast download workers fill the cache of a remote data set, and how fast it trains meanwhile.

    python benchmarks/remote.py  # about five minutes; writes benchmarks/results/remote.json
    python benchmarks/remote.py --quick  # a check that it runs

Fill: from an S3 server on loopback (see remote_store.py: it is the limit, and takes a core) and
from local files through the same code, with 1 and 2 workers, a fresh cache each time; from the
start of the workers to the last shard. Train: epochs of a cache that holds all, with DALI on the
CPU, against a folder of the same images; and while a worker of another cache fetches from local
files without a limit, or at 10 MB/s.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import harness
import measuring
import remote_store
import round_statistics

_STEPS = ["decode", {"resize": {"size": [224, 224]}}]
_ROUNDS, _SECONDS = 5, 8.0
_LIMIT = 10_000_000
_SHARD = 16_000_000


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.side:
        print(json.dumps(side(arguments.side, json.loads(arguments.given))))
        return
    quick = arguments.quick
    root = remote_store.images(arguments.data, 100 if quick else 1000)
    rounds, seconds = (1, 1.0) if quick else (_ROUNDS, _SECONDS)
    with remote_store.s3(root, 1) as s3:
        local = {"source": "remote", "url": f"file://{root}"}
        fills = [
            f"{store}, {n} worker{'s' * (n > 1)}"
            for store in ("S3 on loopback", "local files")
            for n in (1, 2)
        ]
        filled = harness.interleaved(
            lambda name: _fill(name, s3, local, arguments), fills, rounds, "fill"
        )
    trains = ["folder", "cache", "cache, a worker at 10 MB/s", "cache, a worker at full rate"]
    given = {"local": local, "root": str(root), "seconds": seconds}
    trained = harness.interleaved(
        lambda name: _fresh(name, given, arguments), trains, rounds, "train"
    )
    ratios = {
        name: round_statistics.ratio(found, trained["folder"])
        for name, found in trained.items()
        if name != "folder"
    }
    path = harness.write(
        "remote", {"fill": filled, "train": trained, "to_folder": ratios}, arguments
    )
    for name, found in filled.items():
        print(
            f"  {name:28}{round_statistics.median(found, 'mb_per_second'):8,.0f} MB/s "
            f"{round_statistics.median(found, 'images_per_second'):8,.0f} images/s"
        )
    round_statistics.print_table(trained)
    for name, found in ratios.items():
        round_statistics.print_ratio(f"{name} to folder", found)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    options = harness.options(__doc__)
    options.add_argument("--side", help=argparse.SUPPRESS)
    options.add_argument("--given", help=argparse.SUPPRESS)
    return options.parse_args()


def _fill(
    name: str, s3: dict[str, Any], local: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    given = {"data": s3 if name.startswith("S3") else local, "workers": int(name.split()[-2])}
    return _fresh(f"fill: {name}", given, arguments)


def _fresh(name: str, given: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    return harness.fresh(
        __file__, "--side", name, "--given", json.dumps(given), *harness.passed_on(arguments)
    )


def side(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """One measurement, in a process of its own."""
    if name.startswith("fill"):
        return fill(given["data"], given["workers"])
    with _other_worker(name, given["local"]):
        return train(name, given)


def fill(data: dict[str, Any], workers: int) -> dict[str, Any]:
    """Fill a fresh cache with everything."""
    with _cache(workers) as cache:
        source = _source(data | {"cache": cache})
        source.index()
        started = time.perf_counter()
        _run(source, "fill")
        wall = time.perf_counter() - started
        from gpupipe.cache.cache_folder import CacheFolder

        folder = CacheFolder(source.cache)
        folder.commit_log.refresh()
        known = folder.commit_log.published.values()
        size, count = sum(s.bytes for s in known), sum(s.samples for s in known)
    return {
        "mb_per_second": size / wall / 1e6,
        "images_per_second": count / wall,
        "seconds": wall,
        "bytes": size,
        "images": count,
    }


def train(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Epochs of all images, warm."""
    import gpupipe

    with _cache(0) as cache:
        data = (
            {"source": "folder", "root": given["root"]}
            if name == "folder"
            else given["local"] | {"cache": cache}
        )
        if name != "folder":
            source = _source(given["local"] | {"cache": cache})
            source.index()
            _run(
                source.model_copy(update={"cache": source.cache.model_copy(update={"workers": 2})}),
                "fill",
            )
        with gpupipe.load(
            {"data": data, "pipeline": _STEPS},
            batch_size=64,
            device="cpu",
            threads=harness.threads(),
        ) as loader:
            return measuring.measure(
                lambda: loader, lambda batch: len(batch["label"]), given["seconds"], 1.0
            )


@contextmanager
def _other_worker(name: str, local: dict[str, Any]) -> Iterator[None]:
    """A worker of another cache at work meanwhile, where the name says so: it fills, and begins
    anew when it is done.
    """
    if "worker" not in name:
        yield
        return
    limit = {"rate_limit": _LIMIT} if "10 MB/s" in name else {}
    process = subprocess.Popen([sys.executable, "-c", _FILLER, json.dumps([local, limit])])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


_FILLER = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import remote
local, limit = json.loads(sys.argv[1])
while True:
    remote.refill(local, limit)
"""


def refill(local: dict[str, Any], limit: dict[str, Any]) -> None:
    """Fill a cache once, with one worker."""
    with _cache(1) as cache:
        source = _source(local | {"cache": cache | limit})
        source.index()
        _run(source, "fill")


def _source(data: dict[str, Any]) -> Any:
    from gpupipe.sources.remote import Remote

    return Remote(**{key: value for key, value in data.items() if key != "source"})


def _run(source: Any, do: str) -> None:
    """Run the download workers until they are done."""
    from gpupipe.cache.worker_pool import WorkerPool

    workers = WorkerPool(source.dataset, source.cache, source.cache.workers, do)
    while workers.read_outcomes() is None:
        time.sleep(0.01)
    workers.stop()


@contextmanager
def _cache(workers: int) -> Iterator[dict[str, Any]]:
    """The settings of a fresh cache that holds everything."""
    folder = Path(tempfile.mkdtemp(prefix="gpupipe-remote-"))
    try:
        yield {
            "dir": str(folder / "cache"),
            "max_bytes": 2_000_000_000,
            "shard_size": _SHARD,
            "workers": workers,
        }
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
