"""Record files on the CPU: gpupipe, which shuffles all samples, against DALI's own readers on the
same files, which shuffle within a buffer.

    python benchmarks/formats.py  # writes benchmarks/results/formats.json
    python benchmarks/formats.py --only tfrecord  # one format; writes formats.tfrecord.json
    python benchmarks/formats.py --quick  # a check that it runs
    # one contestant, one process, one line of JSON
    python benchmarks/formats.py --one gpupipe recordio

Answers: images a second of both, as medians of interleaved rounds in fresh processes, and their
ratio round by round; both decode whole images and deliver float32 (C, H, W) with labels. And how
fast gpupipe indexes the files, in samples and megabytes a second, page cache warm. The files hold
250x250 JPEGs cut from real photographs (benchmarks/photos.py).
"""

import argparse
import io
import json
import os
import struct
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import baselines
import harness
import measuring
import photos
import round_statistics

_WARM_SECONDS, _BATCH = 2.0, 128
_GOAL = 0.9
_SHARDS = 4
_STEPS = ["decode", {"to_dtype": {"dtype": "float32", "scale": True}}]
_CONTESTANTS = ("gpupipe", "dali")


def main() -> None:
    arguments = _arguments()
    harness.prepare(arguments)
    if arguments.one:
        print(json.dumps(one(*arguments.one, arguments)))
        return
    formats = [arguments.only] if arguments.only else list(FORMATS)
    for name in formats:
        files(name, arguments)
    result = {name: compared(name, arguments) for name in formats}
    path = harness.write(
        f"formats.{arguments.only}" if arguments.only else "formats", {"formats": result}, arguments
    )
    for name, found in result.items():
        report(name, found)
    print(f"written to {path}")


def _arguments() -> argparse.Namespace:
    parser = harness.contest(__doc__, rounds=9, seconds=4.0)
    harness.add_number(parser, "--images", 4096, "images in the files")
    harness.add_selection(parser, FORMATS)
    return harness.parsed(parser, images=512)


# --- the files


def files(name: str, arguments: argparse.Namespace) -> list[Path]:
    """The shards of a format, with what DALI's reader needs beside them; made once."""
    target: Path = arguments.data / f"{name}-{arguments.images}"
    if not target.exists():
        making = target.with_name(f"{target.name}.{os.getpid()}")
        making.mkdir(parents=True)
        images = sorted(photos.lfw_like(arguments.data, arguments.images).glob("*/*.jpg"))
        for n in range(_SHARDS):
            _WRITERS[name](
                making / f"{n}.{FORMATS[name]}",
                [(i, images[i].read_bytes()) for i in range(n, len(images), _SHARDS)],
            )
        making.rename(target)
    return sorted(target.glob(f"*.{FORMATS[name]}"))


def _tar(path: Path, images: list[tuple[int, bytes]]) -> None:
    with tarfile.open(path, "w") as out:
        for i, content in images:
            for ending, part in (
                ("jpg", content),
                ("cls", b"%04d" % (i % 1000)),
            ):  # as many letters in each: DALI delivers the text
                info = tarfile.TarInfo(f"{i:08}.{ending}")
                info.size = len(part)
                out.addfile(info, io.BytesIO(part))


def _tfrecord(path: Path, images: list[tuple[int, bytes]]) -> None:
    from tfrecord import TFRecordWriter
    from tfrecord.tools.tfrecord2idx import create_index

    writer = TFRecordWriter(str(path))
    for i, content in images:
        writer.write({"image/encoded": (content, "byte"), "image/class/label": (i % 1000, "int")})
    writer.close()
    create_index(str(path), f"{path}.idx")


def _rec(path: Path, images: list[tuple[int, bytes]]) -> None:
    """Without images in which the magic number stands: no photograph here is one."""
    with path.open("wb") as out, path.with_suffix(".idx").open("w") as listed:
        for i, content in images:
            payload = struct.pack("<IfQQ", 0, i % 1000, i, 0) + content
            listed.write(f"{i}\t{out.tell()}\n")
            out.write(
                struct.pack("<II", 0xCED7230A, len(payload)) + payload + bytes(-len(payload) % 4)
            )


FORMATS = {"webdataset": "tar", "tfrecord": "tfrecord", "recordio": "rec"}
_WRITERS: dict[str, Callable[[Path, list[tuple[int, bytes]]], None]] = {
    "webdataset": _tar,
    "tfrecord": _tfrecord,
    "recordio": _rec,
}


# --- one contestant, in a process of its own


def one(contestant: str, name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What measuring.measure returns."""
    shards = files(name, arguments)
    return (
        _gpupipe(name, shards, arguments)
        if contestant == "gpupipe"
        else _dali(name, shards, arguments)
    )


def _gpupipe(name: str, shards: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    import gpupipe.engines.dali.engine
    import gpupipe.loader
    from gpupipe.dataset import source

    data: dict[str, Any] = {"source": name, "shards": list(map(str, shards))}
    indexing = _indexing(
        source.SOURCES.find(name)(**{k: v for k, v in data.items() if k != "source"}), shards
    )

    def build() -> Any:
        return gpupipe.load({"data": data, "pipeline": _STEPS}, batch_size=_BATCH, device="cpu")

    found = measuring.measure(
        build, lambda batch: batch["image"].shape[0], arguments.seconds, _WARM_SECONDS
    )
    return found | indexing | (_walking(shards) if name == "webdataset" else {})


def _indexing(data: Any, shards: list[Path]) -> dict[str, float]:
    """How fast the files are parsed and joined, the cache of indexes apart."""
    from gpupipe.dataset.reading import read_each
    from gpupipe.dataset.shards import join_shards
    from gpupipe.runtime.progress import ignore_progress

    data.read(shards[0])  # imports, page cache
    started = time.perf_counter()
    count = len(join_shards(shards, read_each(shards, data.read, ignore_progress), ""))
    seconds = time.perf_counter() - started
    return {
        "indexed_per_second": count / seconds,
        "indexed_mb_per_second": sum(p.stat().st_size for p in shards) / seconds / 1e6,
    }


def _walking(shards: list[Path]) -> dict[str, float]:
    """Members a CPU second that gpupipe's parser finds in tars, and those that tarfile finds."""
    from gpupipe.dataset.reading import map_file
    from gpupipe.formats import tar

    rates = {}
    for what, walk in (
        ("tar_members_per_cpu_second", lambda path: tar.iter_members(map_file(path))),
        ("tarfile_members_per_cpu_second", tarfile.open),
    ):
        started = time.process_time()
        count = sum(1 for path in shards for _ in walk(path))
        rates[what] = count / (time.process_time() - started)
    return rates


def _dali(name: str, shards: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    import nvidia.dali.plugin.pytorch  # noqa: F401  # before the clock starts

    return measuring.measure(
        lambda: baselines.dali_batches(_dali_pipeline(name, shards)),
        baselines.dali_size,
        arguments.seconds,
        _WARM_SECONDS,
    )


def _dali_pipeline(name: str, shards: list[Path]) -> Any:
    from nvidia.dali import Pipeline, fn, types

    pipe = Pipeline(
        batch_size=_BATCH, num_threads=harness.threads(), device_id=None, prefetch_queue_depth=2
    )
    with pipe:
        encoded, labels = _dali_reader(name, list(map(str, shards)))
        images = baselines.decode_only(encoded, "cpu")
        pipe.set_outputs(
            fn.crop_mirror_normalize(
                images, dtype=types.FLOAT, output_layout="CHW", mean=[0.0], std=[255.0]
            ),
            labels,
        )
    return pipe


def _dali_reader(name: str, shards: list[str]) -> Any:
    from nvidia.dali import fn, tfrecord

    shuffled = {"random_shuffle": True, "name": "reader"}
    if name == "webdataset":
        return fn.readers.webdataset(
            paths=shards, ext=["jpg", "cls"], missing_component_behavior="error", **shuffled
        )
    if name == "recordio":
        return _mxnet(shards, shuffled)
    features = {
        "image/encoded": tfrecord.FixedLenFeature((), tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
    }
    found = fn.readers.tfrecord(
        path=shards, index_path=[f"{p}.idx" for p in shards], features=features, **shuffled
    )
    return found["image/encoded"], found["image/class/label"]


def _mxnet(shards: list[str], options: dict[str, Any]) -> Any:
    """DALI takes one index for all files, as if they were one."""
    from nvidia.dali import fn

    before, lines = 0, []
    for path in map(Path, shards):
        lines += [
            (int(place) + before)
            for _, place in (
                line.split("\t") for line in path.with_suffix(".idx").read_text().splitlines()
            )
        ]
        before += path.stat().st_size
    whole = Path(shards[0]).with_name(f"all.{os.getpid()}.idx")
    whole.write_text("".join(f"{n}\t{place}\n" for n, place in enumerate(lines)))
    return fn.readers.mxnet(path=shards, index_path=[str(whole)], **options)


# --- both, compared


def compared(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The rounds, and what they say."""

    def run(contestant: str) -> dict[str, Any]:
        return harness.fresh(
            __file__, "--one", contestant, name, *harness.passed_on(arguments, "seconds", "images")
        )

    rounds = harness.interleaved(run, _CONTESTANTS, arguments.rounds, name)
    ratio = round_statistics.ratio(rounds["gpupipe"], rounds["dali"])
    return {
        "rounds": rounds,
        "disturbed": round_statistics.disturbed(rounds),
        "ratio": ratio,
        "megabytes": sum(p.stat().st_size for p in files(name, arguments)) / 1e6,
        "indexed_per_second": round_statistics.median(rounds["gpupipe"], "indexed_per_second"),
        "indexed_mb_per_second": round_statistics.median(
            rounds["gpupipe"], "indexed_mb_per_second"
        ),
        "walking": {
            key: round_statistics.median(rounds["gpupipe"], key)
            for key in rounds["gpupipe"][0]
            if key.endswith("members_per_cpu_second")
        },
        "cpu_ratio": round_statistics.ratio(
            rounds["gpupipe"], rounds["dali"], "cpu_seconds_per_1000"
        ),
        "goals": [round_statistics.goal("gpupipe to DALI's reader", ratio["median"], _GOAL)],
    }


def report(name: str, found: dict[str, Any]) -> None:
    print(f"\n{name}, {found['megabytes']:,.0f} MB")
    round_statistics.print_table(found["rounds"])
    round_statistics.print_ratio("gpupipe to DALI's reader", found["ratio"])
    print(
        f"  indexed: {found['indexed_per_second']:,.0f} samples/s, "
        f"{found['indexed_mb_per_second']:,.0f} MB/s"
    )
    round_statistics.print_ratio("CPU time of gpupipe to that of DALI's reader", found["cpu_ratio"])
    for what, rate in found["walking"].items():
        print(f"  {what}: {rate:,.0f}")
    round_statistics.print_goals(found["goals"])


if __name__ == "__main__":
    main()
