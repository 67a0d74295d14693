"""Damages saved indexes: turned bits, files cut off, pieces of zeros. After each damage the source
must return the index of its data, and save it again.

python tests/fuzz/fuzz_index.py 400    # damages; prints how often what happened
"""

import collections
import logging
import os
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np

from gpupipe.dataset.index import Index
from gpupipe.dataset.source import Source
from gpupipe.sources.folder import Folder
from gpupipe.sources.zip import Zip


def sources(folder: Path) -> list[Source]:
    """A folder and an archive with the same small files, in five classes."""
    names = [f"class {n % 5}/picture {n}.jpg" for n in range(60)]
    for name in names:
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_bytes(name.encode())
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for name in names:
            archive.writestr(name, name.encode())
    return [Folder(root=folder / "tree"), Zip(shards=str(folder / "all.zip"))]


def rows(index: Index) -> list[tuple[str, int, str, bytes]]:
    """Everything that a run takes from an index."""
    return [
        (
            index.location(i),
            int(index.labels[i]),
            index.classes[int(index.labels[i])],
            index.read(i).tobytes(),
        )
        for i in range(len(index))
    ]


def damage(data: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """The bytes with one damage, and its kind."""
    kind = str(rng.choice(["turned bit", "cut", "zeros"]))
    place = int(rng.integers(len(data)))
    changed = bytearray(data)
    if kind == "turned bit":
        changed[place] ^= 1 << int(rng.integers(8))
    elif kind == "cut":
        del changed[place:]
    else:
        piece = changed[place : place + int(rng.integers(1, 513))]
        changed[place : place + len(piece)] = bytes(len(piece))
    return kind, bytes(changed)


def outcome(source: Source, saved: Path, whole: bytes, expected: list[object]) -> str:
    """What the source does with the damaged index in `saved`."""
    damaged = saved.read_bytes()
    try:
        if rows(source.index()) != expected:
            return "wrong samples"
    except Exception as e:
        return f"{type(e).__name__}"
    if saved.read_bytes() == whole:
        return "made again"
    return "no difference" if damaged == saved.read_bytes() else "something else was saved"


def run(damages: int) -> collections.Counter[tuple[str, str]]:
    """How often each kind of damage had each outcome."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    rng = np.random.default_rng(0)
    now = time.time
    # The files are new: a minute later, indexes of them are saved at once.
    clock = mock.patch("time.time", lambda: now() + 60)
    with clock, tempfile.TemporaryDirectory() as name:
        os.environ["GPUPIPE_CACHE"] = str(Path(name, "cache"))
        for source in sources(Path(name)):
            before = set(Path(name).glob("cache/index/*.idx"))
            expected = rows(source.index())
            (saved,) = set(Path(name).glob("cache/index/*.idx")) - before
            whole = saved.read_bytes()
            for _ in range(damages // 2):
                kind, damaged = damage(whole, rng)
                if damaged == whole:
                    counts[kind, "no difference"] += 1
                    continue
                saved.write_bytes(damaged)
                counts[kind, outcome(source, saved, whole, expected)] += 1
                saved.write_bytes(whole)
    return counts


if __name__ == "__main__":
    logging.getLogger("gpupipe").setLevel(logging.ERROR)
    for (kind, result), count in sorted(run(int(sys.argv[1])).items()):
        print(f"{kind:12}{result:24}{count:>6,}")
