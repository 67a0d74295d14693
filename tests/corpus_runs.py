"""Every file of the corpus on every engine, in processes that may die.

    python tests/corpus_runs.py --all  # every batch size, count of threads and kind of decoding
    python tests/corpus_runs.py --write  # the tables in docs/formats.md

The suite (tests/engines/test_corpus.py) runs each file on each engine alone, among good ones in a
batch of 8 or 32, and together with all others in batches of 31, 32 (DALI) and 256. With
GPUPIPE_TEST_ALL=1 it runs larger and more batches. --all runs each also among 255 good ones.
"""

import argparse
import json
import re
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from helpers import corpus_table, forked_python, image_corpus
from helpers.full_product import IS_FULL
from helpers.image_corpus import Sample, corpus, encoded, lossy, picture

ENGINES: dict[str, dict[str, Any]] = {
    "dali": {"engine": "dali"},
    "torchvision": {"engine": "dataloader", "decoder": "torchvision"},
    "pil": {"engine": "dataloader", "decoder": "pil"},
}
DECODING: dict[str, dict[str, Any]] = {
    "rgb": {},
    "gray": {"mode": "gray"},
    "exif": {"apply_exif_orientation": True},
    "uint16": {"dtype": "uint16"},
    "gray uint16": {"mode": "gray", "dtype": "uint16"},
}
OWN = {"dali": "DALI", "torchvision": "torchvision", "pil": "Pillow"}
"""Who decodes what Pillow is not seen to decode."""
BATCHES, THREADS = (1, 31, 32, 64, 256), (1, 2, 8)
GOOD = 255


def good() -> dict[str, Sample]:
    """255 different files that every engine reads."""
    found = {}
    for n in range(0, GOOD, 3):
        levels = picture(n + 1)
        data = encoded(levels, "JPEG", quality=95)
        found[f"good {n}"] = lossy("JPEG", data, image_corpus.by_pillow(data, "L"))
        found[f"good {n + 1}"] = Sample("PNG", encoded(levels, "PNG"), levels)
        found[f"good {n + 2}"] = Sample("WebP", encoded(levels, "WEBP", lossless=True), levels)
    return found


class Corpus:
    """The corpus as files in a folder, and what is run over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.samples = {file_name(name): (name, sample) for name, sample in corpus().items()}
        self.good = {file_name(name): (name, sample) for name, sample in good().items()}
        both = self.samples | self.good
        (folder / "files").mkdir(parents=True)
        for file, (_, sample) in both.items():
            (folder / "files" / file).write_bytes(sample.data)
        for name, how in DECODING.items():
            words = (
                how.get("mode", "rgb"),
                how.get("dtype", "uint8"),
                "apply_exif_orientation" in how,
            )
            pixels = {f: s.expected(*words) for f, (_, s) in both.items() if s.levels is not None}
            np.savez(folder / f"{name}.npz", **pixels)

    def run(
        self, engine: str, decoding: str, batch: int, threads: int, files: list[str] | None = None
    ) -> dict[str, Any]:
        """All of the corpus, in batches of this size. files: others instead."""
        return {
            "name": f"{engine}, {decoding}, batches of {batch}, {threads} threads"
            + (", among good" if files else ""),
            "options": self._options(engine, batch, threads),
            "decode": DECODING[decoding],
            "expected": f"{decoding}.npz",
            "files": files or list(self.samples),
            "epochs": 2 if files is None and (batch > 1 or decoding == "rgb" or IS_FULL) else 1,
        }

    def among(self, engine: str, decoding: str, batch: int, threads: int) -> dict[str, Any]:
        """Each file in a batch of its own, at another place in each, among good ones."""
        files: list[str] = []
        others = list(self.good)[: batch - 1]
        for n, file in enumerate(self.samples):
            place = n * 7 % batch
            files += [*others[:place], file, *others[place:]]
        return self.run(engine, decoding, batch, threads, files)

    def raising(self, engine: str, files: Iterable[str]) -> dict[str, Any]:
        """Files that may not be skipped, each alone."""
        options = self._options(engine, 1, 1)
        return {
            "name": f"{engine}, raising",
            "raises": True,
            "options": options,
            "files": list(files),
        }

    def _options(self, engine: str, batch: int, threads: int) -> dict[str, Any]:
        """A DataLoader has workers for threads, and none for 1."""
        workers = {} if engine == "dali" else {"workers": threads if threads > 1 else 0}
        return ENGINES[engine] | workers | {"batch_size": batch, "threads": threads}

    def suite(self, engine: str) -> list[dict[str, Any]]:
        """What is run in the test suite."""
        alone = [self.run(engine, decoding, 1, 1) for decoding in DECODING]
        # DALI sets batches of 32 or more up on several threads. The others decode image by image.
        is_dali = engine == "dali"
        if IS_FULL:
            sizes = [(31, 1), (32, 8), (64, 2), (256, 8), (256, 1)]
            together = [(d, *size) for size in sizes for d in ("rgb", "gray")]
            good_size = 64 if is_dali else 31
        else:
            together = [("rgb", 31, 1), ("gray", 256, 2)]
            together += [("gray", 32, 8), ("rgb", 256, 8)] if is_dali else []
            good_size = 32 if is_dali else 8
        return [
            *alone,
            *(self.run(engine, *each) for each in together),
            self.among(engine, "rgb", good_size, 2),
        ]

    def everything(self, engine: str) -> list[dict[str, Any]]:
        """The whole product. Files of different shapes, turned by EXIF, do not fit into one
        batch.
        """
        runs = []
        for decoding in DECODING:
            for batch in BATCHES if decoding != "exif" else (1,):
                for threads in THREADS:
                    runs.append(self.run(engine, decoding, batch, threads))
                    if batch > 1:
                        runs.append(self.among(engine, decoding, batch, threads))
        return runs

    def play(self, runs: list[dict[str, Any]], seconds: float = 600) -> dict[str, dict[str, Any]]:
        """Results by the name of the run.

        Raises AssertionError if the process ends otherwise than it should.
        """
        done = self._process(runs, seconds)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode:
            died = next(one for one in runs if one["name"] == lines[-1].get("begins"))
            why = f"exit code {done.returncode} in: {died['name']}\n{done.stderr[-2000:]}"
            raise AssertionError(f"{why}\nfiles that do it: {self._culprits(died, seconds)}")
        return {line["ends"]: line for line in lines if "ends" in line}

    def _process(
        self, runs: list[dict[str, Any]], seconds: float
    ) -> subprocess.CompletedProcess[str]:
        what = self.folder / "runs.json"
        what.write_text(json.dumps(runs))
        script = str(Path(__file__).parent / "helpers" / "corpus_process.py")
        command = ["-W", "ignore", script, self.folder, what]
        return forked_python.run(command, timeout=seconds)

    def _culprits(self, died: dict[str, Any], seconds: float) -> list[str]:
        """Those of a run that died that are enough to make it die, by halves."""
        files = died["files"]
        while len(files) > 1:
            for part in (files[: len(files) // 2], files[len(files) // 2 :]):
                if self._process([died | {"files": part}], seconds).returncode:
                    files = part
                    break
            else:
                break
        return list(dict.fromkeys(files))

    def wrong(self, result: dict[str, Any], one: dict[str, Any]) -> list[str]:
        """What a run did that it must not: files of other pixels, lost, delivered twice, or good
        and refused.
        """
        found, levels = [], 257 if "uint16" in one["name"] else 1
        for file, count in Counter(one["files"]).items():
            times = count * one["epochs"]
            apart, reason = result["worst"].get(file, 0), result["refused"].get(file)
            if isinstance(apart, str) or apart > levels:
                found.append(f"{file}: {apart if isinstance(apart, str) else f'{apart} levels'}")
            if result["delivered"].get(file, 0) != (times if reason is None else 0):
                found.append(
                    f"{file}: delivered {result['delivered'].get(file, 0)} times of "
                    f"{times}, {reason}"
                )
            if reason is not None and file in self.good:
                found.append(f"{file}: {reason}")
        return found

    def outcomes(self, engine: str, result: dict[str, Any]) -> dict[str, str]:
        """What an engine did with each file, by the name of the sample: who decoded it, or why none
        did.
        """
        return {
            name: result["refused"].get(file) or result["decoder"].get(file, OWN[engine])
            for file, (name, _) in self.samples.items()
        }


def file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") + ".img"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="the seconds of each run")
    parser.add_argument("--engine", choices=ENGINES, action="append")
    arguments = parser.parse_args()
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        files = Corpus(Path(folder) / "corpus")
        for engine in arguments.engine or ENGINES:
            runs = files.everything(engine) if arguments.all else files.suite(engine)
            start = time.perf_counter()
            results = files.play(runs, 5 * 3600 if arguments.all else 3000)
            for one in runs:
                if arguments.verbose:
                    print(f"{one['name']}: {results[one['name']]['seconds']:.1f} s")
                for line in files.wrong(results[one["name"]], one):
                    print(f"{one['name']}: {line}")
            print(f"{engine}: {len(runs)} runs, {time.perf_counter() - start:.0f} s")
            outcomes[engine] = files.outcomes(engine, results[runs[0]["name"]])
    if arguments.write:
        corpus_table.write(outcomes)


if __name__ == "__main__":
    main()
