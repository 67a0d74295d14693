"""JPEGs with damage within their compressed data, among good ones, in a process that one may end.

    # zeroed, flipped, removed or swapped pieces; it prints what became of the files, as JSON
    python -m helpers.damaged_scans zeroed gpu 0.9 FOLDER

Every good file must come with the pixels that it has without the others; on a GPU that uses both
decoders, to three levels. Every damaged file must be delivered or listed.
"""

import json
import sys
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np

from helpers.cut_jpegs import jpeg
from helpers.forked_python import run
from helpers.loaders import load
from helpers.reference import by_id

Rng = np.random.Generator
COUNT = 48
"""Files, of which every second one is damaged."""
SIDE = 256
KINDS: list[dict[str, Any]] = [
    {},
    {"progressive": True},
    {"restart_marker_blocks": 4},
    {"subsampling": 0},
    {"mode": "L"},
]


def _zeroed(scan: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(0, len(scan) - 1024))
    return scan[:at] + bytes(1024) + scan[at + 1024 :]


def _flipped(scan: bytes, rng: Rng) -> bytes:
    data = bytearray(scan)
    for at in rng.integers(0, len(scan), 8).tolist():
        data[at] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _removed(scan: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(0, len(scan) - 512))
    return scan[:at] + scan[at + 512 :]


def _swapped(scan: bytes, rng: Rng) -> bytes:
    middle = len(scan) // 2
    a, b = int(rng.integers(0, middle - 256)), int(rng.integers(middle, len(scan) - 256))
    return b"".join(
        [scan[:a], scan[b : b + 256], scan[a + 256 : b], scan[a : a + 256], scan[b + 256 :]]
    )


DAMAGES: dict[str, Callable[[bytes, Rng], bytes]] = {
    "zeroed": _zeroed,
    "flipped": _flipped,
    "removed": _removed,
    "swapped": _swapped,
}


def damaged(damage: str, data: bytes, seed: int) -> bytes:
    """A JPEG with damage between the header of its first scan and its end marker."""
    begin = data.index(b"\xff\xda")
    begin += 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")
    scan = DAMAGES[damage](data[begin:-2], np.random.default_rng(seed))
    return data[:begin] + scan + data[-2:]


def outcome(damage: str, device: str, hw_decoder_load: float, folder: Path) -> dict[str, Any]:
    """What becomes of damaged files among good ones, in a process of its own.

    Returns its exit status; and if that is 0, how many files were delivered and listed, and how
    many levels good files are off at most.
    """
    arguments = ["-m", __name__, damage, device, str(hw_decoder_load), folder]
    done = run(arguments, cwd=Path(__file__).parents[1], timeout=300)
    if done.returncode:
        return {"status": done.returncode, "error": done.stderr[-2000:]}
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"status": 0} | said


def _deliver(folder: Path, device: str, hw_decoder_load: float, **options: Any) -> dict[int, Any]:
    how = {"engine": "dali", "device": device, "batch_size": COUNT, "threads": 2}
    how |= {"hw_decoder_load": hw_decoder_load, "shuffle": False, "ids": True, **options}
    with load(folder, ["decode"], **how) as loader:
        return {id: image.cpu() for id, image in by_id(loader).items()}


def main(damage: str, device: str, hw_decoder_load: float, folder: Path) -> None:
    if device == "cpu":  # DALI's CPU back end, with the checks that a GPU has
        _check_as_on_a_gpu()
    (folder / "one").mkdir(parents=True)
    good = [n for n in range(COUNT) if n % 2 == 0]
    for n in range(COUNT):
        data = jpeg(size=(SIDE, SIDE), seed=n, **KINDS[n // 2 % len(KINDS)])
        (folder / "one" / f"{n:02}.jpg").write_bytes(data)
    expected = _deliver(folder, device, hw_decoder_load)
    for n in set(range(COUNT)) - set(good):
        file = folder / "one" / f"{n:02}.jpg"
        file.write_bytes(damaged(damage, file.read_bytes(), n))
    bad = folder / "bad.jsonl"
    found = _deliver(folder, device, hw_decoder_load, on_error="skip", max_bad=1.0, quarantine=bad)
    listed = bad.read_text().splitlines() if bad.exists() else []
    levels = [int((found[n].int() - expected[n].int()).abs().max()) for n in good if n in found]
    said = {"good": len(levels), "levels_off": max(levels), "listed": len(listed)}
    print(json.dumps(said | {"delivered": len(found) - len(levels)}), flush=True)


def _check_as_on_a_gpu() -> None:
    from gpupipe.engines.dali import engine

    initialise = engine.DaliEngine.__init__
    checking = partialmethod(initialise, checks_jpegs=True)
    setattr(engine.DaliEngine, "__init__", checking)  # noqa: B010  # mypy forbids the assignment


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
