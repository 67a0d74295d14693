"""Are decoded pixels right? The hardware decoder, CUDA and the CPU over 3,000 photographs.

Of each decoder: the PSNR against the CPU's pixels by kind of image, images of zeros, and whether a
second run makes the same bytes. Then files that decoders treat differently (CMYK, gray,
progressive, EXIF 1 to 8), and files cut at 50, 90 and 99 %, through gpupipe and through DALI alone.
On a CPU the other "decoders" are the CPU's own with other options, which proves the arithmetic.
"""

import argparse
import json
import math
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import damage
import numpy as np
import part
import pictures
from numpy.typing import NDArray

_BATCH = 128
_FLOOR_DB = 30.0
_MAX_DB = 100.0
_SECONDS = {"whole": 75.0, "odd": 40.0, "cut": 40.0, "raw": 90.0}
Pixels = NDArray[np.uint8]


def main() -> None:
    arguments = part.options(__doc__).parse_args()
    part.prepare(arguments)
    photographs, origin = _photographs(arguments)
    if arguments.stage:
        print(json.dumps(_run_stage(arguments.stage[0], photographs, arguments)))
        return
    result = part.Part("decode", arguments)
    result.figures(photographs=origin)
    pictures.mixture(arguments.data, photographs, _count(arguments))
    for name in _SECONDS:
        result.attempt(name, partial(_add_stage, result, name, arguments))
    result.finish()


def _run_stage(name: str, photographs: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    """What a stage finds, in the process of its own."""
    if name == "whole":
        return _whole(photographs, arguments)
    if name == "raw":
        return damage.raw(photographs, partial(_decode_list, arguments), list(decoders(arguments)))
    return {"odd": damage.odd, "cut": damage.cut}[name](photographs, arguments.device)


def _add_stage(result: part.Part, name: str, arguments: argparse.Namespace) -> None:
    found = part.stage(__file__, arguments, name, limit=_SECONDS[name])
    result.figures(**{name: found})
    for what, holds, text in found.get("checks", []):
        result.check(what, holds, text)
    if name == "whole":
        result.headline(found["headline"])


def _photographs(arguments: argparse.Namespace) -> tuple[list[Path], str]:
    import photos

    try:
        found = photos.photographs()
    except FileNotFoundError:
        root = photos.drawn(arguments.data, 47)
        return sorted(root.glob("*/*.jpg")), "drawn 250x250 images, not photographs"
    return found, f"windows of {len(found)} photographs"


def _count(arguments: argparse.Namespace) -> int:
    return 60 if arguments.quick else 3000


# --- whole images


def decoders(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The options of each decoder, by its name; the first is the reference."""
    if arguments.device == "cpu":
        return {"cpu": {}, "cpu, fast IDCT": {"use_fast_idct": True}}
    from gpupipe.config import LoaderConfig

    default = LoaderConfig().hw_decoder_load
    loads = {"CUDA": 0.0, "hardware": 1.0, f"load {default:g}": default}
    return {"cpu": {}} | {name: {"hw_decoder_load": load} for name, load in loads.items()}


def _whole(photographs: list[Path], arguments: argparse.Namespace) -> dict[str, Any]:
    files = pictures.mixture(arguments.data, photographs, _count(arguments))
    paths = [path for path, _ in files]
    names = decoders(arguments)
    runs = [_decoded(arguments, name, paths) for name in names for _ in range(2)]
    tallies = {name: Tally([kind for _, kind in files]) for name in names}
    with ThreadPoolExecutor() as pool:
        for batches in zip(*runs, strict=True):
            for n, tally in enumerate(tallies.values()):
                first, second = batches[2 * n : 2 * n + 2]
                tally.add(list(pool.map(compared, first, batches[0], second)))
    return judged({name: tally.result() for name, tally in tallies.items()}, len(files))


def _decoded(
    arguments: argparse.Namespace, decoder: str, paths: list[Path]
) -> Iterator[list[Pixels]]:
    """Batches of pixels, decoded as gpupipe's graph does. They are valid until the next."""
    from nvidia.dali import Pipeline, fn

    from gpupipe.decoders.chain import DecodeOptions
    from gpupipe.engines.dali.operators import ops
    from gpupipe.runtime.ranks import cores

    on_gpu = arguments.device == "gpu" and decoder != "cpu"
    groups = [paths[n : n + _BATCH] for n in range(0, len(paths), _BATCH)]
    source = ([np.fromfile(path, np.uint8) for path in group] for group in groups)
    pipe = Pipeline(
        _BATCH, cores(), 0 if on_gpu else None, prefetch_queue_depth=1, exec_dynamic=True
    )
    with pipe:
        data = fn.external_source(source, batch=True)
        options = decoders(arguments)[decoder]
        device = "gpu" if on_gpu else "cpu"
        pipe.set_outputs(ops.decode(data, device, DecodeOptions(apply_exif=True), options))
    for _ in groups:
        (batch,) = pipe.run()
        there = batch.as_cpu()
        yield [np.asarray(there.at(n)) for n in range(len(there))]


def _decode_list(arguments: argparse.Namespace, decoder: str, paths: list[Path]) -> list[Pixels]:
    return [image.copy() for batch in _decoded(arguments, decoder, paths) for image in batch]


class Compared(NamedTuple):
    """One image of a decoder. psnr: against the reference, in dB; None where the shapes differ."""

    psnr: float | None
    is_zero: bool
    is_repeated: bool


def compared(image: Pixels, expected: Pixels, again: Pixels) -> Compared:
    """again: the same image in a second run."""
    is_repeated = image.shape == again.shape and zlib.crc32(image) == zlib.crc32(again)
    if image.shape != expected.shape:
        return Compared(None, False, is_repeated)
    is_zero = bool(expected.any()) and not image.any()
    return Compared(psnr(image, expected), is_zero, is_repeated)


class Tally:
    """What is found of one decoder. kinds: of each image, by its number."""

    def __init__(self, kinds: list[str]) -> None:
        self._kinds = kinds
        self._found: list[Compared] = []

    def add(self, batch: list[Compared]) -> None:
        self._found += batch

    def result(self) -> dict[str, Any]:
        """Plain JSON. Of identical images the PSNR is taken as 100 dB."""
        kinds: dict[str, list[float]] = {}
        levels = [(f.psnr, n) for n, f in enumerate(self._found) if f.psnr is not None]
        for db, n in levels:
            kinds.setdefault(self._kinds[n], []).append(min(db, _MAX_DB))
        worst = min(levels, default=(0.0, -1))
        return {
            "zeros": sum(f.is_zero for f in self._found),
            "wrong_shape": len(self._found) - len(levels),
            "changed_in_second_run": sum(not f.is_repeated for f in self._found),
            "identical": sum(db == math.inf for db, _ in levels),
            "min_psnr": min(worst[0], _MAX_DB),
            "worst_image": worst[1],
            "kinds": {
                kind: {"images": len(found), "min": min(found), "mean": float(np.mean(found))}
                for kind, found in sorted(kinds.items())
            },
        }


def psnr(image: Pixels, expected: Pixels) -> float:
    """In dB, of uint8 images of the same shape; infinite where they are the same."""
    difference = image.astype(np.int16) - expected
    error = float(np.mean(np.square(difference, dtype=np.int32)))
    return 10 * math.log10(255**2 / error) if error else math.inf


def judged(found: dict[str, dict[str, Any]], count: int) -> dict[str, Any]:
    """The result of the stage: what was found of each decoder, and the checks."""
    checks: list[tuple[str, bool, str]] = []
    for name, f in found.items():
        lowest = f"min {f['min_psnr']:.1f} dB (image {f['worst_image']})"
        checks += [
            (f"{name}: shapes are right", not f["wrong_shape"], f"{f['wrong_shape']} wrong"),
            (f"{name}: no image of zeros", not f["zeros"], f"{f['zeros']} of {count}"),
            (f"{name}: at least {_FLOOR_DB:g} dB", f["min_psnr"] >= _FLOOR_DB, lowest),
        ]
        changed = f["changed_in_second_run"]
        checks.append((f"{name}: two runs are the same", not changed, f"{changed} differ"))
    others = [f"{name} {f['min_psnr']:.1f} dB" for name, f in found.items() if name != "cpu"]
    headline = f"{count} images, least PSNR: {', '.join(others)}"
    return {"images": count, "decoders": found, "checks": checks, "headline": headline}


if __name__ == "__main__":
    main()
