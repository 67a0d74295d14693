"""gpupipe beside other loaders that install from the package index: the same JPEGs, on the CPU.

    pip install spdl litdata mosaicml-streaming webdataset grain pylance  # in a side environment
    python benchmarks/peers.py  # writes benchmarks/results/peers.json
    python benchmarks/peers.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/peers.py --one spdl imagenet

Answers: images a second of each, as medians of interleaved rounds in fresh processes. Each takes a
random resized crop of 224x224 and a flip out of photographs of 500x375, and delivers uint8 batches
of 128 in a shuffled order. All but gpupipe leave the steps to the user: here torchvision does them,
in as many worker processes (SPDL: threads) as there are cores. The data of a peer is converted to
its format first; that is not timed. A peer that is not installed is left out.
"""

import argparse
import importlib.util
import io
import itertools
import json
import tarfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import harness
import measuring
import photos
import round_statistics
import torch
from torchvision.io import ImageReadMode, decode_jpeg
from torchvision.transforms import v2

_BATCH, _SIZE = 128, 224
_WARM_SECONDS = 0.5
_ROWS = 64
"""The samples of a tar shard or of a fragment."""


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(arguments.one[0], arguments)))
        return
    names = [name for name in PEERS if importlib.util.find_spec(PEERS[name].module)]
    for name in names:
        prepare(name, arguments)
    shared = harness.passed_on(arguments, "seconds", "images")

    def run(name: str) -> dict[str, Any]:
        return harness.fresh(__file__, *shared, "--one", name, "imagenet")

    rounds = harness.interleaved(run, names, arguments.rounds, "peers")
    versions = {name: _find_version(PEERS[name].package) for name in names}
    path = harness.write("peers", {"rounds": rounds, "versions": versions}, arguments)
    round_statistics.print_table(rounds)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=3, seconds=1.5)
    harness.add_number(parser, "--images", 512, "photographs")
    harness.add_selection(parser, ["imagenet"])
    return harness.parsed(parser, images=256)


def _find_version(package: str) -> str:
    import gpupipe

    return gpupipe.__version__ if package == "gpupipe" else version(package)


def one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What measuring.measure returns."""
    torch.set_num_threads(1)
    folder, paths = get_folder(name, arguments), _list_photographs(arguments)
    build = PEERS[name].build
    return measuring.measure(lambda: build(folder, paths), _count, arguments.seconds, _WARM_SECONDS)


def _count(batch: Any) -> int:
    image = batch["image"] if isinstance(batch, dict) else batch[0]
    assert image.shape[-1] == _SIZE, image.shape
    return int(image.shape[0])


# --- the steps, as a user of these libraries writes them


def transform(content: bytes) -> torch.Tensor:
    """Decode a JPEG, cut a random window, resize and flip it."""
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    image = decode_jpeg(data, ImageReadMode.RGB)
    image = v2.RandomResizedCrop(_SIZE, antialias=True)(image)
    result: torch.Tensor = v2.RandomHorizontalFlip()(image)
    return result


def get_folder(name: str, arguments: argparse.Namespace) -> Path:
    """Return the folder of the data in a peer's own format."""
    return Path(arguments.data / f"peers-{name}-{arguments.images}")


def _list_photographs(arguments: argparse.Namespace) -> list[Path]:
    return sorted(photos.imagenet_like(arguments.data, arguments.images).glob("*/*.jpg"))


def prepare(name: str, arguments: argparse.Namespace) -> None:
    """Convert the photographs to a peer's own format, if they are not yet."""
    folder, paths = get_folder(name, arguments), _list_photographs(arguments)
    if not folder.exists():
        PEERS[name].convert(folder, paths)


def decode_items(base: Any) -> Any:
    """Return a library's class of data sets, whose items are decoded."""

    class Dataset(base):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            return transform(super().__getitem__(index)["image"]), 0

    return Dataset


def load(dataset: Any, loader: Any = torch.utils.data.DataLoader, **options: Any) -> Any:
    usual = {"batch_size": _BATCH, "num_workers": harness.threads(), "persistent_workers": True}
    return loader(dataset, **usual, **options)


# --- gpupipe


def _build_gpupipe(folder: Path, paths: list[Path]) -> Any:
    import gpupipe

    steps = ["decode", {"random_resized_crop": {"size": _SIZE}}, "random_horizontal_flip"]
    config = {"data": {"source": "folder", "root": str(paths[0].parents[1])}, "pipeline": steps}
    return gpupipe.load(config, batch_size=_BATCH, device="cpu", engine="cpu")


# --- torch's DataLoader, with no other library


class _Files(torch.utils.data.Dataset[Any]):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, n: int) -> tuple[torch.Tensor, int]:
        return transform(self._paths[n].read_bytes()), n


def _build_torch(folder: Path, paths: list[Path]) -> Any:
    return load(_Files(paths), shuffle=True)


# --- SPDL: threads


class _Spdl:
    """A pipeline for each pass, since one runs once."""

    def __init__(self, folder: Path, paths: list[Path]) -> None:
        self._paths = paths

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        threads = harness.threads()
        pipeline = (
            PipelineBuilder()
            .add_source([self._paths[n] for n in torch.randperm(len(self._paths)).tolist()])
            .pipe(lambda path: transform(path.read_bytes()), concurrency=threads)
            .aggregate(_BATCH)
            .pipe(lambda images: (torch.stack(images),))
            .add_sink(3)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline


# --- LitData


def _read(path: str) -> dict[str, Any]:
    return {"image": Path(path).read_bytes(), "label": 0}


def _convert_litdata(folder: Path, paths: list[Path]) -> None:
    import litdata

    litdata.optimize(_read, [*map(str, paths)], str(folder), num_workers=1, chunk_bytes="16MB")


def _build_litdata(folder: Path, paths: list[Path]) -> Any:
    import litdata

    dataset = decode_items(litdata.StreamingDataset)(str(folder), shuffle=True)
    return load(dataset, litdata.StreamingDataLoader)


# --- Streaming


def _convert_streaming(folder: Path, paths: list[Path]) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"image": "bytes"}, size_limit="16mb") as writer:
        for path in paths:
            writer.write({"image": path.read_bytes()})


def _build_streaming(folder: Path, paths: list[Path]) -> Any:
    from streaming import StreamingDataset

    create = decode_items(StreamingDataset)
    return load(create(local=str(folder), shuffle=True, batch_size=_BATCH))


# --- WebDataset


def _convert_webdataset(folder: Path, paths: list[Path]) -> None:
    folder.mkdir(parents=True)
    for first in range(0, len(paths), _ROWS):
        with tarfile.open(folder / f"{first // _ROWS:04}.tar", "w") as archive:
            for n, path in enumerate(paths[first : first + _ROWS], first):
                content = path.read_bytes()
                member = tarfile.TarInfo(f"{n:08}.jpg")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def _build_webdataset(folder: Path, paths: list[Path]) -> Any:
    import webdataset

    shards = sorted(map(str, folder.glob("*.tar")))
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(_ROWS)
    return load(dataset.to_tuple("jpg").map_tuple(transform))


# --- Grain


class _Grain:
    """The batches of an endless iterator: its workers start once, and not for each pass."""

    def __init__(self, folder: Path, paths: list[Path]) -> None:
        import grain

        dataset = (
            grain.MapDataset.source([*map(str, paths)])
            .shuffle(seed=0)
            .repeat()
            .map(lambda path: transform(Path(path).read_bytes()).numpy())
            .batch(_BATCH, batch_fn=lambda images: (torch.stack([*map(torch.from_numpy, images)]),))
        )
        options = grain.multiprocessing.MultiprocessingOptions(num_workers=harness.threads())
        self._batches = iter(dataset.to_iter_dataset().mp_prefetch(options))
        self._count = len(paths) // _BATCH

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, self._count)


# --- Lance


def _convert_lance(folder: Path, paths: list[Path]) -> None:
    import lance
    import pyarrow as pa

    images = pa.array([path.read_bytes() for path in paths], pa.binary())
    lance.write_dataset(pa.table({"image": images}), folder, max_rows_per_file=_ROWS)


class _Lance(torch.utils.data.Dataset[Any]):
    def __init__(self, folder: str) -> None:
        import lance

        self._folder, self._dataset = folder, None
        self._count = lance.dataset(folder).count_rows()

    def __len__(self) -> int:
        return int(self._count)

    def __getitems__(self, rows: list[int]) -> list[tuple[torch.Tensor, int]]:
        import lance

        if self._dataset is None:
            self._dataset = lance.dataset(self._folder)
        table = self._dataset.take(rows)  # type: ignore[attr-defined]
        return [(transform(image.as_py()), 0) for image in table.column("image")]


def _build_lance(folder: Path, paths: list[Path]) -> Any:
    # Lance is not fork-safe, as its pages say.
    return load(_Lance(str(folder)), shuffle=True, multiprocessing_context="spawn")


class Peer(NamedTuple):
    """A loader: what builds it, and what converts the photographs to a folder of its format."""

    package: str
    module: str
    build: Callable[[Path, list[Path]], Any]
    convert: Callable[[Path, list[Path]], None] = lambda folder, paths: None


PEERS = {
    "gpupipe": Peer("gpupipe", "gpupipe", _build_gpupipe),
    "torch": Peer("torch", "torch", _build_torch),
    "spdl": Peer("spdl", "spdl", _Spdl),
    "litdata": Peer("litdata", "litdata", _build_litdata, _convert_litdata),
    "streaming": Peer("mosaicml-streaming", "streaming", _build_streaming, _convert_streaming),
    "webdataset": Peer("webdataset", "webdataset", _build_webdataset, _convert_webdataset),
    "grain": Peer("grain", "grain", _Grain),
    "lance": Peer("pylance", "lance", _build_lance, _convert_lance),
}


if __name__ == "__main__":
    main()
