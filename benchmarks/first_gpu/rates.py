"""How many JPEGs a second does DALI decode, of each kind, and who decodes them?

Each decoder runs in a process of its own: hw_decoder_load 0, 0.9 and 1. NVML tells how busy the
JPEG engines are meanwhile: a decoder of load 1 during which they idle leaves that kind to CUDA.
The files are in memory, and the pixels stay on the GPU. "large" is 4000x3000 pixels.
"""

import argparse
import io
import itertools
import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import gpu_measuring
import numpy as np
import part
import pictures
from numpy.typing import NDArray
from PIL import Image

_LARGE = "large"
_BUSY = 0.02
_STAGE_SECONDS = 60.0
_BATCHES = {"small": 128, _LARGE: 16}
_SIZES = {"small": (500, 375), _LARGE: (4000, 3000)}
_FILES = {"small": 256, _LARGE: 16}
Files = list[NDArray[np.uint8]]


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    if arguments.stage:
        print(json.dumps(_measure_all(arguments.stage[0], arguments)))
        return
    result = part.Part("rates", arguments)
    found: dict[str, Any] = {}
    for name in decoders(arguments.device):
        result.attempt(name, partial(_add_decoder, result, found, name, arguments))
    result.headline("; ".join(_headline(name, kinds) for name, kinds in found.items()))
    result.finish()


def decoders(device: str) -> dict[str, dict[str, Any]]:
    """The options of each decoder, by its name."""
    if device == "cpu":
        return {"cpu": {}}
    return {f"load {load:g}": {"hw_decoder_load": load} for load in (0.0, 1.0, 0.9)}


def _add_decoder(
    result: part.Part, found: dict[str, Any], name: str, arguments: argparse.Namespace
) -> None:
    found[name] = part.stage(__file__, arguments, name, limit=_STAGE_SECONDS)
    result.figures(**found)
    idle = [kind for kind, figures in found[name].items() if not figures["images_per_second"]]
    result.check(f"{name} decodes every kind", not idle, ", ".join(idle))


def _headline(name: str, kinds: dict[str, Any]) -> str:
    rates = [f"{kind} {f['images_per_second']:,.0f}" for kind, f in kinds.items()]
    return f"{name}: {', '.join(rates)} images/s"


# --- one decoder, in a process of its own


def _measure_all(decoder: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What `_measure` returns for each kind of image, and for large ones."""
    kinds = {kind: _files(kind, "small", arguments) for kind in pictures.KINDS}
    kinds[_LARGE] = _files("4:2:0", _LARGE, arguments)
    return {
        kind: _measure(files, _BATCHES.get(kind, _BATCHES["small"]), decoder, arguments)
        for kind, files in kinds.items()
    }


def _files(kind: str, size: str, arguments: argparse.Namespace) -> Files:
    """Different JPEGs of one kind: windows of a photograph if there is one, else of noise."""
    count = 4 if arguments.quick else _FILES[size]
    width, height = (side // 4 if arguments.quick else side for side in _SIZES[size])
    picture = _picture(width + count, height)
    mode = "L" if kind == "gray" else "RGB"
    different = 4 if size == _LARGE else count
    made = [
        pictures.encoded(picture.crop((n, 0, n + width, height)).convert(mode), kind)
        for n in range(min(count, different))
    ]
    return [np.frombuffer(made[n % len(made)], np.uint8) for n in range(count)]


def _picture(width: int, height: int) -> Image.Image:
    import photos

    try:
        source: Any = photos.photographs()[0]
    except FileNotFoundError:
        blobs = np.random.default_rng(0).integers(0, 255, (24, 32, 3), np.uint8)
        source = io.BytesIO()
        Image.fromarray(blobs).resize((640, 480)).save(source, "PNG")
    with Image.open(source) as opened:
        return opened.convert("RGB").resize((width, height))


def _measure(
    files: Files, batch_size: int, decoder: str, arguments: argparse.Namespace
) -> dict[str, Any]:
    """Images a second, what NVML says meanwhile, and who decoded them."""
    batch_size = min(batch_size, len(files))
    groups = [files[n : n + batch_size] for n in range(0, len(files), batch_size)]
    run = _pipeline(itertools.cycle(groups), batch_size, decoder, arguments)
    seconds = 0.2 if arguments.quick else 1.5
    for _ in range(1 if arguments.quick else 4):
        run()
    with _readers(arguments.device) as readers, gpu_measuring.Sampler(readers, 0.02) as sampler:
        started, images = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            run()
            images += batch_size
        wall = time.perf_counter() - started
        said = sampler.means(started)
    return {"images_per_second": images / wall, "gpu": said, "decoded_by": decoded_by(said)}


def decoded_by(said: dict[str, float]) -> str:
    """Who decoded, by what NVML says of the JPEG engines."""
    if "jpeg_utilisation" not in said:
        return "unknown: NVML does not tell"
    return "hardware" if said["jpeg_utilisation"] > _BUSY else "CUDA or the CPU"


def _readers(device: str) -> Any:
    import contextlib

    return gpu_measuring.gpu_readers(0) if device == "gpu" else contextlib.nullcontext({})


def _pipeline(
    groups: Iterator[Files], batch_size: int, decoder: str, arguments: argparse.Namespace
) -> Any:
    """A function that decodes a batch, and waits until it is done."""
    from nvidia.dali import Pipeline, fn

    from gpupipe.decoders.chain import DecodeOptions
    from gpupipe.engines.dali.operators import ops
    from gpupipe.runtime.ranks import cores

    number = None if arguments.device == "cpu" else 0
    pipe = Pipeline(batch_size, cores(), number, prefetch_queue_depth=2, exec_dynamic=True)
    with pipe:
        data = fn.external_source(lambda: next(groups), batch=True)
        options = decoders(arguments.device)[decoder]
        pipe.set_outputs(
            ops.decode(data, arguments.device, DecodeOptions(apply_exif=True), options)
        )

    def run() -> None:
        pipe.run()
        if number is not None:
            import torch

            torch.cuda.synchronize(number)

    return run


if __name__ == "__main__":
    main()
