"""The contestants of benchmarks/gpu.py, by name.

NAME[@KEY=VALUE,...]: gpupipe, hand-written, decode-only (each with DALI on the device),
torchvision-tensor-WORKERS. hand-written and decode-only may be followed by -fancy, to upsample
chroma as gpupipe and torchvision do, and by -region, to decode only what a random crop needs.
Keys: load (the share of JPEGs for the hardware decoder), threads, huffman (pixels above which the
GPU decodes the Huffman codes too; not of gpupipe).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import baselines
import harness
import measuring

_KEYS = {"load": float, "threads": int, "huffman": int}
_DEFAULT_LOAD = 0.9
_WHOLE = {"lfw-affine": baselines.affine, "imagenet_train": baselines.train_whole}


@dataclass(frozen=True)
class Contestant:
    """build: makes its batches; size: how many images a batch has; close: gives its memory back."""

    build: Callable[[], Any]
    size: Callable[[Any], int]
    close: Callable[[], None] = measuring.nothing


def contestant(text: str, workload: str, root: Path, device: str) -> Contestant:
    """The contestant that `text` names. device: gpu (the first) or cpu."""
    name, _, settings = text.partition("@")
    pairs = [s.split("=") for s in settings.split(",") if s]
    options = {key: _KEYS[key](value) for key, value in pairs}
    kind, *how = name.split("-")
    given = baselines.WORKLOADS[workload]
    if kind == "gpupipe":
        return _gpupipe(given, root, device, options)
    if kind == "torchvision":
        return Contestant(lambda: _Moved(given, root, device, how[0], int(how[1])), len)
    return _by_hand(kind, set(how), workload, root, device, options)


def _by_hand(
    kind: str, how: set[str], workload: str, root: Path, device: str, options: dict[str, Any]
) -> Contestant:
    given = baselines.WORKLOADS[workload]
    threads = options.get("threads", harness.threads())
    decoder: dict[str, Any] = {"hw_decoder_load": options.get("load", _DEFAULT_LOAD)}
    if "fancy" in how:
        decoder["jpeg_fancy_upsampling"] = True
    if "huffman" in options:
        decoder["hybrid_huffman_threshold"] = options["huffman"]
    if kind == "decode":
        graph = baselines.decode_region if "region" in how else baselines.decode_only
    else:
        graph = baselines.train_region if "region" in how else _WHOLE[workload]
    where = None if device == "cpu" else 0

    def pipe() -> Any:
        return baselines.dali_pipeline(
            graph, root, given.batch_size, threads, given.shuffle, where, **decoder
        )

    if kind == "decode":
        return Contestant(lambda: _Decoded(pipe(), given.batch_size), len)
    return Contestant(lambda: baselines.dali_batches(pipe()), baselines.dali_size)


def _gpupipe(
    workload: baselines.Workload, root: Path, device: str, options: dict[str, Any]
) -> Contestant:
    """Imported here and now, so that its imports do not count as time to the first batch."""
    import gpupipe.engines.dali.engine
    import gpupipe.loader

    config = {"data": {"source": "folder", "root": str(root)}, "pipeline": workload.pipeline}
    settings = {
        "batch_size": workload.batch_size,
        "shuffle": workload.shuffle,
        "device": "cpu" if device == "cpu" else "gpu:0",
        "hw_decoder_load": options.get("load", _DEFAULT_LOAD),
        "threads": options.get("threads", "auto"),
    }
    loaders: list[Any] = []

    def build() -> Any:
        loaders.append(gpupipe.load(config, engine="dali", **settings))
        return loaders[-1]

    def close() -> None:
        for loader in loaders:
            loader.close()

    return Contestant(build, lambda batch: batch["image"].shape[0], close)


class _Decoded:
    """Epochs of decoding alone; the pixels stay where they are."""

    def __init__(self, pipe: Any, batch_size: int) -> None:
        self._pipe = pipe
        self._pipe.build()
        self._runs = -(-self._pipe.reader_meta("reader")["epoch_size"] // batch_size)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._runs):
            yield self._pipe.run()[0]


class _Moved:
    """Epochs of torchvision's DataLoader; batches are copied to the GPU."""

    def __init__(
        self, workload: baselines.Workload, root: Path, device: str, decoder: str, workers: int
    ) -> None:
        self._device = "cpu" if device == "cpu" else "cuda:0"
        pinned = device != "cpu"
        self._batches = baselines.torchvision_batches(
            workload, root, decoder, workers, pin_memory=pinned
        )

    def __iter__(self) -> Iterator[Any]:
        for image, label in self._batches:
            label.to(self._device, non_blocking=True)
            yield image.to(self._device, non_blocking=True)
