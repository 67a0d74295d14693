"""Odd and cut files through gpupipe, and what DALI alone makes of cut ones."""

import itertools
import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pictures
from numpy.typing import NDArray
from PIL import Image

_FLOOR_DB = 28.0
_MAX_DB = 100.0
_PERCENT = (50.0, 90.0, 99.0)
_SIDE = 96
_RAW_KINDS = ("420", "progressive")
Images = dict[str, NDArray[np.float32]]
Check = tuple[str, bool, str]


def odd(photographs: list[Path], device: str) -> dict[str, Any]:
    """Files of odd kinds against torchvision's decoder on the CPU; CMYK against DALI's there."""
    checks: list[Check] = []
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = pictures.oddities(folder / "odd", photographs[0])
        listed = list(files.values())
        torchs = _loaded(listed, folder / "torch", engine="dataloader", workers=0, device="cpu")
        dalis = _loaded(listed, folder / "cpu", engine="dali", device="cpu")
        for title, options in _loaders(device).items():
            images = _loaded(listed, folder / title, engine="dali", **options)
            for kind, file in files.items():
                expected = (dalis if kind == "CMYK" else torchs).get(file.name)
                text, holds = _alike(images.get(file.name), expected)
                found.setdefault(title, {})[kind] = text
                checks.append((f"{kind}, {title}", holds, text))
    return {"found": found, "checks": checks}


def _alike(image: Any, expected: Any) -> tuple[str, bool]:
    """What is to be said of an image and its reference, and whether they agree."""
    if image is None or expected is None:
        is_refused = image is None and expected is None
        return "refused" if is_refused else "decoded on one side alone", is_refused
    db = _psnr(image, expected)
    return f"{db:.1f} dB", db >= _FLOOR_DB


def cut(photographs: list[Path], device: str) -> dict[str, Any]:
    """Cut files must be skipped and named; the others of their batches must not suffer."""
    checks: list[Check] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole, damaged = _cut_files(folder, photographs)
        expected = _loaded(whole, folder / "reference", engine="dali", device="cpu")
        for title, options in _loaders(device).items():
            quarantine = folder / f"{title}.jsonl"
            images = _loaded(sorted([*whole, *damaged]), quarantine, engine="dali", **options)
            named = _quarantined(quarantine)
            checks += _judged(title, images, expected, named, {f.name for f in damaged})
    return {"checks": checks}


def _judged(
    title: str, images: Images, expected: Images, named: set[str], damaged: set[str]
) -> list[Check]:
    missed, blamed = sorted(damaged - named), sorted(named - damaged)
    levels = [_psnr(images[n], image) if n in images else 0.0 for n, image in expected.items()]
    count = f"{len(damaged) - len(missed)} of {len(damaged)}"
    return [
        (f"cut files are skipped and named, {title}", not missed, f"{count}; not {missed[:6]}"),
        (f"no good file is blamed, {title}", not blamed, str(blamed[:6])),
        (
            f"good files beside cut ones are right, {title}",
            min(levels) >= _FLOOR_DB,
            f"min {min(levels):.1f} dB",
        ),
    ]


def _quarantined(file: Path) -> set[str]:
    """The names of the files that a loader skipped."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return {Path(json.loads(line)["path"]).name for line in lines}


def raw(
    photographs: list[Path],
    decode: Callable[[str, list[Path]], list[NDArray[np.uint8]]],
    decoders: list[str],
) -> dict[str, Any]:
    """What DALI alone makes of a batch of 32 with one cut file: no check, gpupipe looks first.

    decode: a decoder and files to pixels; the first of `decoders` is the reference.
    """
    from gpupipe.runtime import capability_probe_child

    fates: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        whole, damaged = _cut_files(Path(folder), photographs)
        damaged = [f for f in damaged if f.stem.split("-")[1] in _RAW_KINDS]
        good = (whole * 3)[:31]
        expected = decode(decoders[0], good)
        for decoder, file in itertools.product(decoders, damaged):
            try:
                *others, last = decode(decoder, [*good, file])
            except RuntimeError as e:
                fate = f"raises: {capability_probe_child.extract_cause(str(e))}"
            else:
                filled = np.mean((last == last[-1, -1]).all(axis=-1))
                levels = [_psnr(a, b) for a, b in zip(others, expected, strict=True)]
                fate = f"decodes; {filled:.0%} has the colour of the last pixel"
                fate += f"; the others have at least {min(levels):.1f} dB"
            fates.setdefault(decoder, {})[file.stem] = fate
    return {"fates": fates}


def _cut_files(folder: Path, photographs: list[Path]) -> tuple[list[Path], list[Path]]:
    """Whole files, and cut ones: of each kind at 50, 90 and 99 %."""
    whole, damaged = [], []
    for n, (kind, percent) in enumerate(itertools.product(pictures.KINDS, _PERCENT)):
        with Image.open(photographs[n % len(photographs)]) as opened:
            image = opened.convert("L" if kind == "gray" else "RGB").resize((400, 300))
        data = pictures.encoded(image, kind)
        stem = f"{n:02d}-{kind.replace(':', '')}"
        whole.append(folder / f"{stem}-whole.jpg")
        whole[-1].write_bytes(data)
        damaged.append(folder / f"{stem}-{percent:g}.jpg")
        damaged[-1].write_bytes(data[: int(len(data) * percent / 100)])
    return whole, damaged


def _loaders(device: str) -> dict[str, dict[str, Any]]:
    """The settings of the loaders that the files go through, by what they are called."""
    if device == "cpu":
        return {"cpu": {"device": "cpu"}}
    return {f"load {load}": {"device": "gpu", "hw_decoder_load": load} for load in (0, 1)}


def _loaded(files: list[Path], quarantine: Path, **options: Any) -> Images:
    """The images that a loader delivers, 96x96, by the name of their file."""
    import gpupipe

    listed = quarantine.with_suffix(".txt")
    listed.write_text("".join(f"{f}\n" for f in files), encoding="utf-8")
    config = {
        "data": {"source": "file_list", "file": str(listed)},
        "pipeline": ["decode", {"resize": {"size": [_SIDE, _SIDE]}}],
        "loader": {"batch_size": 16, "shuffle": False, "ids": True, "on_error": "skip"},
    }
    found: Images = {}
    own = {"max_bad": 1.0, "quarantine": str(quarantine), **options}
    with gpupipe.load(config, **own) as loader:
        for batch in loader:
            images = batch["image"].float().cpu().numpy()
            ids = batch["id"].tolist()
            found |= {files[i].name: image for i, image in zip(ids, images, strict=True)}
    return found


def _psnr(image: NDArray[Any], expected: NDArray[Any]) -> float:
    """In dB, at most 100; 0 where the shapes differ."""
    if image.shape != expected.shape:
        return 0.0
    error = float(np.mean(np.square(image.astype(np.float32) - expected)))
    return min(_MAX_DB, 10 * math.log10(255**2 / error)) if error else _MAX_DB
