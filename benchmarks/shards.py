"""Shards behind a slow wire: the time until each sample came once, and the rate of the next epoch.

    pip install litdata mosaicml-streaming webdataset datasets  # in a side environment
    python benchmarks/shards.py  # as root; writes benchmarks/results/shards.json
    python benchmarks/shards.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON; a wire must be up
    python benchmarks/shards.py --one gpupipe imagenet

The same photographs of 500x375 lie in tars of 64 (gpupipe, WebDataset, Hugging Face), in MDS shards
and in LitData's chunks of 16 MB, behind nginx and a wire of --wire MB/s (see shard_wire.py). Each
contestant delivers batches of 128 random crops of 224x224, with as many worker processes or threads
as there are cores, in fresh processes, interleaved.

Answers, for each: the seconds from the construction of the loader until every sample was delivered
at least once, and how many of them passed before the first byte and after the last one; images a
second of the epoch after that; and the bytes that came over the wire before and in that epoch. Each
of gpupipe's early epochs has the samples that came since the one before it (cache.epoch: new).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import harness
import peers
import round_statistics
import shard_wire
import torch

_BATCH, _SIZE = 128, 224


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        with tempfile.TemporaryDirectory(dir=arguments.data) as cache:
            print(json.dumps(one(arguments.one[0], arguments, Path(cache))))
        return
    names = [name for name in CONTESTANTS if importlib.util.find_spec(CONTESTANTS[name].module)]
    for name in names:
        CONTESTANTS[name].prepare(arguments)
    shared = harness.passed_on(arguments, "images", "wire")

    def run(name: str) -> dict[str, Any]:
        return harness.fresh(__file__, *shared, "--one", name, "imagenet")

    with shard_wire.wire(arguments.data, arguments.wire):
        rounds = harness.interleaved(run, names, arguments.rounds, "shards")
    versions = {name: _find_version(CONTESTANTS[name].module) for name in names}
    size = sum(path.stat().st_size for path in _tars(arguments))
    result = {"rounds": rounds, "versions": versions, "wire_mb": arguments.wire, "tar_bytes": size}
    path = harness.write("shards", result, arguments)
    print(f"  the wire alone takes {size / arguments.wire / 1e6:.1f} s for {size / 1e6:,.0f} MB")
    for name, found in rounds.items():
        seconds, start, end, rate, first, second = (
            round_statistics.median(found, key)
            for key in (
                "seconds",
                "before_first_byte",
                "after_last_byte",
                "images_per_second",
                "first_bytes",
                "second_bytes",
            )
        )
        print(
            f"  {name:12}{seconds:8.1f} s until all came, {start:.1f} of them before the first "
            f"byte and {end:.1f} after the last, {first / 1e6:7.1f} MB; then "
            f"{rate:7,.0f} images/s, {second / 1e6:7.1f} MB"
        )
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=3, seconds=0.0)
    parser.add_argument("--images", type=int, default=3072, help="photographs (%(default)s)")
    parser.add_argument(
        "--wire", type=float, default=20.0, help="million bytes a second (%(default)s)"
    )
    harness.add_selection(parser, ["imagenet"])
    return harness.parsed(parser, images=256)


def _find_version(module: str) -> str:
    import gpupipe

    package = {"streaming": "mosaicml-streaming"}.get(module, module)
    return gpupipe.__version__ if module == "gpupipe" else version(package)


def one(name: str, arguments: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """One contestant: all samples once, then one epoch more."""
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
    again = time.perf_counter()
    count = next(epochs)
    wall = time.perf_counter() - again
    assert count == arguments.images, count
    return {
        "seconds": seconds,
        "before_first_byte": first_byte - began,
        "after_last_byte": began + seconds - last_byte,
        "passes": passes,
        "first_bytes": first,
        "images_per_second": count / wall,
        "second_bytes": shard_wire.count_received() - received - first,
    }


def _tars(arguments: argparse.Namespace) -> list[Path]:
    return sorted(_folder(arguments, "webdataset").glob("*.tar"))


def _folder(arguments: argparse.Namespace, name: str) -> Path:
    folder: Path = arguments.data / f"peers-{name}-{arguments.images}"
    return folder


def _urls(arguments: argparse.Namespace) -> list[str]:
    folder = _folder(arguments, "webdataset").name
    return [f"{shard_wire.URL}/{folder}/{path.name}" for path in _tars(arguments)]


def _count_passes(batches: Any, size: Callable[[Any], int]) -> Iterator[int]:
    """Yield the number of samples of each pass over a loader."""
    while True:
        yield sum(size(batch) for batch in batches)


def _first_size(batch: Any) -> int:
    assert batch[0].shape[1:] == (3, _SIZE, _SIZE), batch[0].shape
    return len(batch[0])


# --- gpupipe


def _iterate_gpupipe(arguments: argparse.Namespace, cache: Path) -> Iterator[int]:
    """Yield how many samples came so far, after each epoch; once all did, those of each epoch."""
    import gpupipe

    url = f"{shard_wire.URL}/{_folder(arguments, 'webdataset').name}"
    data = {
        "source": "remote",
        "url": url,
        "shards": "*.tar",
        "label": None,
        "cache": {"dir": str(cache / "cache"), "max_bytes": "20GB", "epoch": "new"},
    }
    steps = ["decode", {"random_resized_crop": {"size": _SIZE}}, "random_horizontal_flip"]
    config = {"data": data, "pipeline": steps}
    seen: set[int] = set()
    with gpupipe.load(config, batch_size=_BATCH, device="cpu", engine="cpu", ids=True) as loader:
        while len(seen) < arguments.images:
            for batch in loader:
                seen.update(batch["id"].tolist())
                if len(seen) == arguments.images:
                    break
            yield len(seen)
        yield from _count_passes(loader, lambda batch: len(batch["id"]))


# --- WebDataset


def _iterate_webdataset(arguments: argparse.Namespace, cache: Path) -> Iterator[int]:
    import webdataset

    urls = [f"pipe:curl -s -L {url}" for url in _urls(arguments)]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls)).shuffle(64)
    loader = _load(dataset.to_tuple("jpg").map_tuple(peers.transform))
    return _count_passes(loader, _first_size)


def _load(dataset: Any, **options: Any) -> Any:
    workers = harness.threads()
    return torch.utils.data.DataLoader(
        dataset, batch_size=_BATCH, num_workers=workers, persistent_workers=True, **options
    )


# --- Streaming, from nginx as if it were S3: an object is a path


def _set_credentials() -> None:
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "S3_ENDPOINT_URL": shard_wire.URL,
        "AWS_ENDPOINT_URL": shard_wire.URL,
    }


def _iterate_streaming(arguments: argparse.Namespace, cache: Path) -> Iterator[int]:
    _set_credentials()
    from streaming import StreamingDataset

    class Dataset(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            return peers.transform(super().__getitem__(index)["image"]), 0

    remote = f"s3://{_folder(arguments, 'streaming').name}"
    dataset = Dataset(remote=remote, local=str(cache / "local"), shuffle=True, batch_size=_BATCH)
    return _count_passes(_load(dataset), _first_size)


# --- LitData


def _iterate_litdata(arguments: argparse.Namespace, cache: Path) -> Iterator[int]:
    _set_credentials()
    import litdata
    from litdata.streaming import downloader

    # Its client refuses http:// otherwise, which only a server on the own machine has.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    class Dataset(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            return peers.transform(super().__getitem__(index)["image"]), 0

    dataset = Dataset(
        f"s3://{_folder(arguments, 'litdata').name}",
        cache_dir=str(cache / "chunks"),
        shuffle=True,
        storage_options={"endpoint_url": shard_wire.URL},
    )
    loader = litdata.StreamingDataLoader(
        dataset, batch_size=_BATCH, num_workers=harness.threads(), persistent_workers=True
    )
    return _count_passes(loader, _first_size)


# --- Hugging Face datasets


def _transform_row(row: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return peers.transform(row["jpg"]["bytes"]), 0


def _iterate_datasets(arguments: argparse.Namespace, cache: Path) -> Iterator[int]:
    os.environ |= {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
    import datasets

    rows = datasets.load_dataset(
        "webdataset", data_files={"train": _urls(arguments)}, split="train", streaming=True
    )
    rows = rows.cast_column("jpg", datasets.Image(decode=False)).shuffle(seed=0, buffer_size=64)

    def collate(batch: list[Any]) -> tuple[torch.Tensor]:
        return (torch.stack([_transform_row(row)[0] for row in batch]),)

    return _count_passes(_load(rows, collate_fn=collate), _first_size)


class Contestant:
    """A loader: its module, what iterates over it, and what converts the data."""

    def __init__(
        self,
        module: str,
        iterate: Callable[[argparse.Namespace, Path], Iterator[int]],
        prepare: Callable[[argparse.Namespace], None],
    ) -> None:
        self.module, self.iterate, self.prepare = module, iterate, prepare


_TARS, _MDS, _CHUNKS = (peers.PEERS[n].prepare for n in ("webdataset", "streaming", "litdata"))
CONTESTANTS = {
    "gpupipe": Contestant("gpupipe", _iterate_gpupipe, _TARS),
    "webdataset": Contestant("webdataset", _iterate_webdataset, _TARS),
    "streaming": Contestant("streaming", _iterate_streaming, _MDS),
    "litdata": Contestant("litdata", _iterate_litdata, _CHUNKS),
    "datasets": Contestant("datasets", _iterate_datasets, _TARS),
}


if __name__ == "__main__":
    main()
