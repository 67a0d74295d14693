"""Runs of loaders over the corpus, in a process that may die: see corpus_runs.py.

    python tests/helpers/corpus_process.py FOLDER RUNS.json

Prints a line of JSON before each run and one after it.
"""

import hashlib
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gpupipe
from gpupipe.decoders.chain import DECODERS

_DECODERS = ("Pillow", "torchvision", "imagecodecs")
sys.modules["torchcodec"] = None  # type: ignore[assignment]  # it would decode AVIF before Pillow


class Watch:
    """Notes which file was decoded by what, of all that a DataLoader of no workers or Pillow
    decodes.
    """

    def __init__(self, folder: Path) -> None:
        self._names = {hashlib.sha1(p.read_bytes()).digest(): p.name for p in folder.iterdir()}
        self.decoder: dict[str, str] = {}
        for name in _DECODERS:
            decoder: Any = DECODERS.find(name.lower())
            decoder.decode = self._watched(decoder.decode, name)

    def _watched(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def watched(decoder: Any, header: Any, data: Any, **options: Any) -> Any:
            self.decoder[
                self._names[hashlib.sha1(bytes(memoryview(np.asarray(data)))).digest()]
            ] = name
            return function(decoder, header, data, **options)

        return watched


def difference(image: torch.Tensor, expected: np.ndarray[Any, Any]) -> int | str:
    """The most levels that they are apart, or what else is wrong."""
    pixels = image.numpy()
    if (pixels.shape, pixels.dtype) != (expected.shape, expected.dtype):
        return f"{pixels.dtype} {pixels.shape} and not {expected.dtype} {expected.shape}"
    if np.array_equal(pixels, expected):
        return 0
    return int(np.abs(pixels.astype(np.int64) - expected.astype(np.int64)).max())


def run(folder: Path, one: dict[str, Any], watch: Watch) -> dict[str, Any]:
    listing, listed = folder / "list.txt", folder / "bad.jsonl"
    listing.write_text("".join(f"files/{name}\n" for name in one["files"]))
    listed.unlink(missing_ok=True)
    expected = dict(np.load(folder / one["expected"]))
    config = {
        "data": {"source": "file_list", "file": listing},
        "pipeline": [{"decode": one["decode"]}],
    }
    options = one["options"] | {"device": "cpu", "shuffle": False, "ids": True}
    options |= {"on_error": "skip", "max_bad": 1.0, "quarantine": listed}
    delivered: Counter[str] = Counter()
    worst: dict[str, int | str] = defaultdict(int)
    watch.decoder = {}
    with gpupipe.load(config, **options) as loader:
        for _ in range(one["epochs"]):
            for batch in loader:
                for row, image in zip(batch["id"].tolist(), batch["image"], strict=True):
                    name = one["files"][row]
                    delivered[name] += 1
                    apart = (
                        difference(image, expected[name])
                        if name in expected
                        else "no pixels expected"
                    )
                    if (
                        isinstance(apart, str)
                        or isinstance(worst[name], str)
                        or apart > worst[name]
                    ):
                        worst[name] = apart
    bad = [json.loads(line) for line in listed.read_text().splitlines()] if listed.exists() else []
    refused = {Path(line["path"]).name: line["reason"] for line in bad}
    return {"delivered": delivered, "worst": worst, "refused": refused, "decoder": watch.decoder}


def run_alone(folder: Path, one: dict[str, Any]) -> dict[str, Any]:
    """What a loader raises that may skip nothing, by file."""
    raised = {}
    for name in one["files"]:
        (folder / "list.txt").write_text(f"files/{name}\n")
        config = {
            "data": {"source": "file_list", "file": folder / "list.txt"},
            "pipeline": ["decode"],
        }
        try:
            with gpupipe.load(config, device="cpu", **one["options"]) as loader:
                list(loader)
            raised[name] = "nothing"
        except gpupipe.SampleError as e:
            raised[name] = str(e)
    return {"raised": raised}


def main() -> None:
    folder, runs = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    watch = Watch(folder / "files")
    for one in runs:
        print(json.dumps({"begins": one["name"]}), flush=True)
        start = time.perf_counter()
        result = run_alone(folder, one) if one.get("raises") else run(folder, one, watch)
        print(
            json.dumps({"ends": one["name"]} | result | {"seconds": time.perf_counter() - start}),
            flush=True,
        )


if __name__ == "__main__":
    main()
