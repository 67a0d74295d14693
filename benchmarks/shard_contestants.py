"""The contestants of shards.py, and what converts the photographs for each."""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import peers
import shard_wire
import torch

_BATCH, _SIZE = 128, 224


def list_tars(arguments: argparse.Namespace) -> list[Path]:
    """The tars of photographs."""
    return sorted(peers.get_folder("webdataset", arguments).glob("*.tar"))


def list_urls(arguments: argparse.Namespace) -> list[str]:
    """Where the tars are behind the wire."""
    folder = peers.get_folder("webdataset", arguments).name
    return [f"{shard_wire.URL}/{folder}/{path.name}" for path in list_tars(arguments)]


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

    url = f"{shard_wire.URL}/{peers.get_folder('webdataset', arguments).name}"
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

    urls = [f"pipe:curl -s -L {url}" for url in list_urls(arguments)]
    dataset = webdataset.WebDataset(urls, shardshuffle=len(urls)).shuffle(64)
    loader = peers.load(dataset.to_tuple("jpg").map_tuple(peers.transform))
    return _count_passes(loader, _first_size)


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

    remote = f"s3://{peers.get_folder('streaming', arguments).name}"
    dataset = peers.decode_items(StreamingDataset)(
        remote=remote, local=str(cache / "local"), shuffle=True, batch_size=_BATCH
    )
    # The client that fetched the index has an open connection. Workers that are forks would all
    # read from it, and take parts of each other's answers for their own.
    for stream in dataset.streams:
        stream._downloader.clean_up()
    return _count_passes(peers.load(dataset), _first_size)


# --- LitData


def _iterate_litdata(arguments: argparse.Namespace, cache: Path) -> Iterator[int]:
    _set_credentials()
    import litdata
    from litdata.streaming import downloader

    # Its client refuses http:// otherwise, which only a server on the own machine has.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True

    dataset = peers.decode_items(litdata.StreamingDataset)(
        f"s3://{peers.get_folder('litdata', arguments).name}",
        cache_dir=str(cache / "chunks"),
        shuffle=True,
        storage_options={"endpoint_url": shard_wire.URL},
    )
    return _count_passes(peers.load(dataset, litdata.StreamingDataLoader), _first_size)


# --- Hugging Face datasets


def _transform_row(row: dict[str, Any]) -> tuple[torch.Tensor, int]:
    return peers.transform(row["jpg"]["bytes"]), 0


def _iterate_datasets(arguments: argparse.Namespace, cache: Path) -> Iterator[int]:
    os.environ |= {"HF_HOME": str(cache), "HF_HUB_OFFLINE": "0"}
    import datasets

    rows = datasets.load_dataset(
        "webdataset", data_files={"train": list_urls(arguments)}, split="train", streaming=True
    )
    rows = rows.cast_column("jpg", datasets.Image(decode=False)).shuffle(seed=0, buffer_size=64)

    def collate(batch: list[Any]) -> tuple[torch.Tensor]:
        return (torch.stack([_transform_row(row)[0] for row in batch]),)

    return _count_passes(peers.load(rows, collate_fn=collate), _first_size)


class Contestant(NamedTuple):
    """A loader: its module, what iterates over it, and the peer whose format it reads."""

    module: str
    iterate: Callable[[argparse.Namespace, Path], Iterator[int]]
    peer: str


CONTESTANTS = {
    "gpupipe": Contestant("gpupipe", _iterate_gpupipe, "webdataset"),
    "webdataset": Contestant("webdataset", _iterate_webdataset, "webdataset"),
    "streaming": Contestant("streaming", _iterate_streaming, "streaming"),
    "litdata": Contestant("litdata", _iterate_litdata, "litdata"),
    "datasets": Contestant("datasets", _iterate_datasets, "webdataset"),
}
