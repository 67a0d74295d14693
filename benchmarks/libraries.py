"""Data sets in the formats of other libraries, on the CPU: gpupipe's sources against a DataLoader
over the format's own library, on the same files.

    python benchmarks/libraries.py  # writes benchmarks/results/libraries.json
    python benchmarks/libraries.py --only lmdb  # one format; writes libraries.lmdb.json
    python benchmarks/libraries.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/libraries.py --one library hf

Answers: images a second of both, as medians of interleaved rounds in fresh processes, and their
ratio round by round. Both shuffle all samples, decode whole images and deliver float32 (C, H, W)
with labels, in batches of 128. The DataLoader has a worker process for each core, which stay from
epoch to epoch; it decodes with torchvision. The files hold 250x250 JPEGs cut from real photographs,
or drawn ones where there are none.

- hf: datasets.load_from_disk, with set_transform; gpupipe's source hf
- hf_parquet: the same images in Parquet files with row groups of 20 rows, read with
  datasets.load_dataset, which converts them to Arrow once; gpupipe unpacks them once
- lmdb: the package lmdb, opened in each worker; gpupipe's source lmdb
- zip_stored, zip_deflated: Python's zipfile, opened in each worker; gpupipe's source zip
"""

import argparse
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import harness
import measuring
import photos
import round_statistics
import torch

_WARM_SECONDS, _BATCH = 2.0, 128
_GOAL = 2.0
_CLASSES = 100
_PARQUET_FILES, _ROWS = 4, 20
"""Parquet files, and the rows of a row group: 206 groups, more than gpupipe keeps in memory."""
_STEPS = ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}]
_CONTESTANTS = ("gpupipe", "library")


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments)))
        return
    formats = [arguments.only] if arguments.only else list(FORMATS)
    for name in formats:
        file_of(name, arguments)
    result = {name: compared(name, arguments) for name in formats}
    out = f"libraries.{arguments.only}" if arguments.only else "libraries"
    path = harness.write(out, {"formats": result}, arguments)
    for name, found in result.items():
        print(f"\n{name}")
        round_statistics.print_table(found["rounds"])
        round_statistics.print_ratio("gpupipe to the library in a DataLoader", found["ratio"])
        round_statistics.print_goals(found["goals"])
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=9, seconds=4.0)
    harness.add_number(parser, "--images", 4096, "images in the files")
    parser.add_argument("--drawn", action="store_true", help="drawn images, not photographs")
    harness.add_selection(parser, FORMATS)
    return harness.parsed(parser, images=512)


# --- the files


def file_of(name: str, arguments: argparse.Namespace) -> Path:
    """The data set in a format; made once."""
    kind = "drawn" if arguments.drawn else "photos"
    target: Path = arguments.data / f"{name}-{kind}-{arguments.images}"
    if not target.exists():
        making = target.with_name(f"{target.name}.{os.getpid()}")
        making.parent.mkdir(parents=True, exist_ok=True)
        make = photos.drawn if arguments.drawn else photos.lfw_like
        paths = sorted(make(arguments.data, arguments.images).glob("*/*.jpg"))
        FORMATS[name][0](making, [path.read_bytes() for path in paths])
        making.rename(target)
    return target


def _make_hf(images: Sequence[bytes]) -> Any:
    import datasets

    names = [f"class {n}" for n in range(_CLASSES)]
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    rows = {
        "image": [{"bytes": image, "path": None} for image in images],
        "label": [n % _CLASSES for n in range(len(images))],
    }
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def _write_hf(path: Path, images: Sequence[bytes]) -> None:
    _make_hf(images).save_to_disk(str(path))


def _write_parquet(path: Path, images: Sequence[bytes]) -> None:
    every = _make_hf(images)
    for n in range(_PARQUET_FILES):
        file = path / "data" / f"train-{n:05}-of-{_PARQUET_FILES:05}.parquet"
        every.shard(_PARQUET_FILES, n, contiguous=True).to_parquet(str(file), batch_size=_ROWS)


def _write_lmdb(path: Path, images: Sequence[bytes]) -> None:
    import lmdb

    with lmdb.open(str(path), map_size=1 << 34) as env, env.begin(write=True) as transaction:
        for n, image in enumerate(images):
            transaction.put(b"image-%08d" % n, image)
            transaction.put(b"label-%08d" % n, b"%d" % (n % _CLASSES))


def _write_zip(path: Path, images: Sequence[bytes], method: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", method) as archive:
        for n, image in enumerate(images):
            archive.writestr(f"{n % _CLASSES:03}/{n:08}.jpg", image)


def _write_deflated(path: Path, images: Sequence[bytes]) -> None:
    _write_zip(path, images, zipfile.ZIP_DEFLATED)


# --- the libraries, as their users read them in a DataLoader


def _decode(content: bytes) -> torch.Tensor:
    from torchvision.io import ImageReadMode, decode_jpeg

    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return decode_jpeg(data, ImageReadMode.RGB).float() / 255


class _Lmdb(torch.utils.data.Dataset[Any]):
    def __init__(self, path: Path) -> None:
        import lmdb

        self._path, self._env = str(path), None
        with lmdb.open(self._path, readonly=True, lock=False) as env:
            self._count = env.stat()["entries"] // 2

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, n: int) -> dict[str, Any]:
        import lmdb

        if self._env is None:
            self._env = lmdb.open(self._path, readonly=True, lock=False, readahead=False)
        with self._env.begin() as transaction:  # type: ignore[attr-defined]
            image = transaction.get(b"image-%08d" % n)
            label = int(transaction.get(b"label-%08d" % n))
        return {"image": _decode(image), "label": label}


class _Zip(torch.utils.data.Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self._path, self._archive = path, None
        with zipfile.ZipFile(path) as archive:
            self._names = archive.namelist()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, n: int) -> dict[str, Any]:
        if self._archive is None:
            self._archive = zipfile.ZipFile(self._path)  # type: ignore[assignment]
        name = self._names[n]
        content = self._archive.read(name)  # type: ignore[attr-defined]
        return {"image": _decode(content), "label": int(name.partition("/")[0])}


def _open_parquet(path: Path) -> Any:
    import datasets

    return _transform(
        datasets.load_dataset("parquet", data_dir=str(path / "data"), cache_dir=f"{path}.cache")[
            "train"
        ]
    )


def _open_hf(path: Path) -> Any:
    import datasets

    return _transform(datasets.load_from_disk(str(path)))


def _transform(every: Any) -> Any:
    import datasets

    def transform(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        return {"image": [_decode(row["bytes"]) for row in rows["image"]], "label": rows["label"]}

    every = every.cast_column("image", datasets.Image(decode=False))
    every.set_transform(transform)
    return every


FORMATS: dict[str, tuple[Callable[[Path, list[bytes]], None], Callable[[Path], Any], Any]] = {
    "hf": (_write_hf, _open_hf, lambda path: {"source": "hf", "root": path}),
    "hf_parquet": (_write_parquet, _open_parquet, lambda path: {"source": "hf", "root": path}),
    "lmdb": (
        _write_lmdb,
        _Lmdb,
        lambda path: {
            "source": "lmdb",
            "path": path,
            "fields": {"image": "image-{id}"},
            "label": "label-{id}",
        },
    ),
    "zip_stored": (_write_zip, _Zip, lambda path: {"source": "zip", "shards": path}),
    "zip_deflated": (_write_deflated, _Zip, lambda path: {"source": "zip", "shards": path}),
}


# --- one contestant, in a process of its own


def one(contestant: str, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What measuring.measure returns."""
    path = file_of(name, arguments)
    build = _build_gpupipe if contestant == "gpupipe" else _build_loader
    return measuring.measure(
        lambda: build(name, path),
        lambda batch: batch["image"].shape[0],
        arguments.seconds,
        _WARM_SECONDS,
    )


def _build_gpupipe(name: str, path: Path) -> Any:
    import gpupipe

    data = FORMATS[name][2](str(path))
    return gpupipe.load({"data": data, "pipeline": _STEPS}, batch_size=_BATCH, device="cpu")


def _build_loader(name: str, path: Path) -> Any:
    return torch.utils.data.DataLoader(
        FORMATS[name][1](path),
        batch_size=_BATCH,
        shuffle=True,
        num_workers=harness.threads(),
        persistent_workers=True,
    )


# --- both, compared


def compared(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The rounds, and what they say."""
    options = harness.passed_on(arguments, "seconds", "images")
    options += ["--drawn"] if arguments.drawn else []

    def run(contestant: str) -> dict[str, Any]:
        return harness.fresh(__file__, "--one", contestant, name, *options)

    rounds = harness.interleaved(run, _CONTESTANTS, arguments.rounds, name)
    ratio = round_statistics.ratio(rounds["gpupipe"], rounds["library"])
    return {
        "rounds": rounds,
        "disturbed": round_statistics.disturbed(rounds),
        "ratio": ratio,
        "cpu_ratio": round_statistics.ratio(
            rounds["gpupipe"], rounds["library"], "cpu_seconds_per_1000"
        ),
        "goals": [round_statistics.goal("gpupipe to the library", ratio["median"], _GOAL)],
    }


if __name__ == "__main__":
    main()
