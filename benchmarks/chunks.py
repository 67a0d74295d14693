"""HDF5 and Zarr on a CPU, from the page cache: contiguous data beside .npy, and compressed chunks
beside a DataLoader over h5py.

    # about 5 minutes, with nothing beside it; writes benchmarks/results/chunks.json
    python benchmarks/chunks.py
    python benchmarks/chunks.py --quick  # a check that it runs
    python benchmarks/chunks.py --one "hdf5, contiguous"  # one contestant, one line of JSON

Raw samples are float32 of 1 MB. Images are uint8 (128, 128, 3), in chunks of 16 images or of one,
with gzip. All are shuffled in every epoch: all of the rows, or with `order: chunks` the chunks,
whose cache holds the buffer and not the data set. "a busy thread" is pure Python in the same
process that wants the interpreter all the time; `busy_thread` is its speed, as a share of what it
is alone. "cached" are 8 shards in the growing cache, which has all of them.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import harness
import measuring
import numpy as np
import round_statistics
from raw import Busy, Watched

RAW, IMAGE = (4, 256, 256), (128, 128, 3)
BATCH = 64
_RAW_BYTES = 4 * 4 * 256 * 256
_WARM_SECONDS = 1.0
_OF_NPY, _BUSY_RATE, _OF_LOADER, _OF_LOADER_ALONE = 0.9, 0.6, 3.0, 1.5
_CHUNK_BYTES = 16 * 128 * 128 * 3
_BUFFER = 32
_CACHE = (_BUFFER + 9) * _CHUNK_BYTES
_PART = 512
_SHARDS = 8


def _gpupipe(**data: Any) -> Iterable[Any]:
    import gpupipe

    return gpupipe.load(
        {"data": data, "pipeline": []},
        batch_size=BATCH,
        engine="cpu",
        device="cpu",
        last_batch="drop",
    )


def npy(root: Path) -> Iterable[Any]:
    return _gpupipe(source="numpy", files=str(root / "raw.npy"), rows=True, field="image")


def hdf5(name: str, array: str, **options: Any) -> Callable[[Path], Iterable[Any]]:
    def build(root: Path) -> Iterable[Any]:
        fields = {"image": array}
        return _gpupipe(source="hdf5", files=str(root / name), fields=fields, **options)

    return build


def cached(ending: str, folder: str, **data: Any) -> Callable[[Path], Iterable[Any]]:
    """Shards in the growing cache in `folder`, which has all of them."""

    def build(root: Path) -> Iterable[Any]:
        cache = {"dir": str(root / folder), "max_bytes": "4GB", "epoch": "full"}
        url = f"file://{root}/shards-{ending}"
        return _gpupipe(source="remote", url=url, shards=f"*.{ending}", cache=cache, **data)

    return build


def zarr(root: Path) -> Iterable[Any]:
    return _gpupipe(source="zarr", stores=str(root / "raw.zarr"), fields={"image": "/"})


class H5Images:
    """A data set over h5py, as tutorials have it: each worker opens the file."""

    def __init__(self, path: str, array: str, count: int) -> None:
        self._path, self._array, self._count, self._file = path, array, count, None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: int) -> Any:
        import h5py
        import torch

        if self._file is None:
            self._file = h5py.File(self._path, "r")[self._array]
        return torch.from_numpy(self._file[i])


def data_loader(array: str) -> Callable[[Path], Iterable[Any]]:
    def build(root: Path) -> Iterable[Any]:
        import h5py
        from torch.utils.data import DataLoader, RandomSampler

        path = str(root / "images.h5")
        with h5py.File(path) as file:
            count = len(file[array])
        images: Any = H5Images(path, array, count)
        # A pass is a part of an epoch, since a whole one takes half a minute.
        sampler = RandomSampler(images, num_samples=_PART)
        return DataLoader(
            images, BATCH, sampler=sampler, num_workers=2, drop_last=True, persistent_workers=True
        )

    return build


_CHUNKS = {"order": "chunks", "buffer": _BUFFER, "chunk_cache": _CACHE}
CONTESTANTS: dict[str, Callable[[Path], Iterable[Any]]] = {
    "npy": npy,
    "hdf5, contiguous": hdf5("raw.h5", "contiguous"),
    "zarr, not compressed": zarr,
    "hdf5, contiguous, a busy thread": hdf5("raw.h5", "contiguous"),
    "zarr, not compressed, a busy thread": zarr,
    "npy, cached, a busy thread": cached(
        "npy", "cache-npy", shard_format="numpy", options={"rows": True, "field": "image"}
    ),
    "hdf5, cached, a busy thread": cached(
        "h5", "cache-h5", shard_format="hdf5", fields={"image": "contiguous"}, label=None
    ),
    "zarr, cached, a busy thread": cached(
        "zip", "cache-zip", shard_format="zarr", fields={"image": "/"}, label=None
    ),
    "hdf5, chunks of 16, order: chunks": hdf5("images.h5", "sixteen", layout="HWC", **_CHUNKS),
    "hdf5, cached, chunks of 16, order: chunks": cached(
        "h5",
        "cache-chunks",
        shard_format="hdf5",
        fields={"image": "sixteen"},
        label=None,
        options={"layout": "HWC", **_CHUNKS},
    ),
    "hdf5, chunks of 16": hdf5("images.h5", "sixteen", layout="HWC", chunk_cache=_CACHE),
    "hdf5, chunks of 1": hdf5("images.h5", "one", layout="HWC"),
    "DataLoader, chunks of 16": data_loader("sixteen"),
    "DataLoader, chunks of 1": data_loader("one"),
}


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    make(arguments)
    if arguments.one:
        print(json.dumps(one(arguments.one, arguments)))
        return
    size = [*harness.passed_on(arguments), "--seconds", str(arguments.seconds)]
    size += ["--samples", str(arguments.samples)]
    rounds = harness.interleaved(
        lambda name: harness.fresh(__file__, "--one", name, *size),
        CONTESTANTS,
        arguments.rounds,
        "chunks",
    )
    result = {
        "samples": arguments.samples,
        "batch_size": BATCH,
        "disturbed": round_statistics.disturbed(rounds),
        "rounds": rounds,
        "ratios": ratios(rounds),
        "goals": goals(rounds),
    }
    path = harness.write("chunks", result, arguments)
    round_statistics.print_table(rounds)
    for name, found in ratios(rounds).items():
        round_statistics.print_ratio(name, found)
    round_statistics.print_goals(goals(rounds))
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=3, seconds=2.0)
    harness.add_number(parser, "--samples", 512, "samples of 1 MB")
    parser.add_argument("--one", choices=list(CONTESTANTS), help="run one contestant here")
    return harness.parsed(parser, samples=128)


def _root(arguments: argparse.Namespace) -> Path:
    root: Path = arguments.data / f"chunks-{arguments.samples}"
    return root


def make(arguments: argparse.Namespace) -> None:
    """Write the files, unless they are there. There are four times as many images as samples."""
    root = _root(arguments)
    make_shards(root, arguments.samples)
    if (root / "done").exists():
        return
    import h5py

    root.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    raw = rng.random((arguments.samples, *RAW), dtype=np.float32)
    np.save(root / "raw.npy", raw)
    with h5py.File(root / "raw.h5", "w") as file:
        file["contiguous"] = raw
    write_zarr(root / "raw.zarr", raw)
    with h5py.File(root / "images.h5", "w") as file:
        write_images(file, 4 * arguments.samples, rng)
    (root / "done").touch()


def write_images(file: Any, count: int, rng: np.random.Generator) -> None:
    """Write images with gzip: large shapes with some noise, of which it leaves a half."""
    options = {"shape": (count, *IMAGE), "dtype": "u1", "compression": "gzip"}
    sixteen = file.create_dataset("sixteen", chunks=(16, *IMAGE), **options)
    single = file.create_dataset("one", chunks=(1, *IMAGE), **options)
    for begin in range(0, count, 16):
        coarse = rng.integers(0, 60, (16, 8, 8, 3), np.uint8) * 4
        images = coarse.repeat(16, 1).repeat(16, 2)
        images += rng.integers(0, 3, images.shape, np.uint8)
        sixteen[begin : begin + 16] = single[begin : begin + 16] = images


def write_zarr(store: Any, raw: Any) -> None:
    """Write raw samples to a Zarr array, in shards and without compression."""
    import zarr as zarr_package

    options = {"chunks": (1, *RAW), "shards": (32, *RAW), "compressors": None, "overwrite": True}
    zarr_package.create_array(store, shape=raw.shape, dtype=raw.dtype, **options)[:] = raw


def make_shards(root: Path, samples: int) -> None:
    """Write 8 shards of raw samples in each format, the HDF5 with images too, and fill caches."""
    if (root / "filled").exists():
        return
    import h5py
    from zarr.storage import ZipStore

    for ending in ("npy", "h5", "zip"):
        (root / f"shards-{ending}").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    for n in range(_SHARDS):
        raw = rng.random((samples // _SHARDS, *RAW), dtype=np.float32)
        np.save(root / f"shards-npy/{n}.npy", raw)
        with ZipStore(root / f"shards-zip/{n}.zarr.zip", mode="w") as store:
            write_zarr(store, raw)
        with h5py.File(root / f"shards-h5/{n}.h5", "w") as file:
            file["contiguous"] = raw
            write_images(file, 4 * samples // _SHARDS, rng)
    for name, build in CONTESTANTS.items():
        if "cached" in name:
            sum(1 for _ in build(root))
    (root / "filled").touch()


def one(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What measuring.measure returns, and the share of the main thread."""
    import torch  # noqa: F401  # before the clock starts

    warnings.simplefilter("ignore")
    busy = Busy() if "busy thread" in name else None
    watched: list[Watched] = []

    def build() -> Watched:
        watched.append(Watched(CONTESTANTS[name](_root(arguments)), busy, None))
        return watched[-1]

    started = time.perf_counter()
    found = measuring.measure(build, _size, arguments.seconds, _WARM_SECONDS)
    counted = watched[0].passes[-len(found["passes"]) :]
    cpu, wall, count = (sum(column) for column in zip(*counted, strict=True))
    found |= {"main_thread": cpu / wall, "all_seconds": time.perf_counter() - started}
    return found | ({} if busy is None else {"busy_thread": count / wall / busy.alone})


def _size(batch: Any) -> int:
    return len(batch["image"] if isinstance(batch, dict) else batch)


def ratios(rounds: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Round by round."""
    pairs = {
        "hdf5, contiguous / npy": ("hdf5, contiguous", "npy"),
        "zarr, not compressed / npy": ("zarr, not compressed", "npy"),
        "chunks of 16: order: chunks / DataLoader": (
            "hdf5, chunks of 16, order: chunks",
            "DataLoader, chunks of 16",
        ),
        "chunks of 16: full permutation / DataLoader": (
            "hdf5, chunks of 16",
            "DataLoader, chunks of 16",
        ),
        "chunks of 1: full permutation / DataLoader": (
            "hdf5, chunks of 1",
            "DataLoader, chunks of 1",
        ),
    }
    return {
        name: round_statistics.ratio(rounds[own], rounds[other])
        for name, (own, other) in pairs.items()
    }


def goals(rounds: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What was aimed at."""
    found = ratios(rounds)
    bounds = {
        "hdf5, contiguous / npy": _OF_NPY,
        "chunks of 16: order: chunks / DataLoader": _OF_LOADER,
        "chunks of 1: full permutation / DataLoader": _OF_LOADER_ALONE,
    }
    rates = {
        f"GB/s, {name}": round_statistics.median(rounds[name], "images_per_second")
        * _RAW_BYTES
        / 1e9
        for name in CONTESTANTS
        if "busy" in name
    }
    return [
        *(round_statistics.goal(n, found[n]["median"], bound) for n, bound in bounds.items()),
        *(round_statistics.goal(n, rate, _BUSY_RATE) for n, rate in rates.items()),
    ]


if __name__ == "__main__":
    main()
