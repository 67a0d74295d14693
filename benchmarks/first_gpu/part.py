"""What the parts of first_gpu.sh share: options, and a result that is saved after each finding."""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that all parts have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = Path(tempfile.gettempdir()) / "gpbench"
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON result")
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu", help="where it runs")
    parser.add_argument("--quick", action="store_true", help="few images: a check that it runs")
    parser.add_argument("--data", type=Path, default=data, help="folder for images and caches")
    parser.add_argument("--photos", type=Path, help="folder of class folders with photographs")
    parser.add_argument("--stage", nargs="*", help="run one stage here, and print its JSON")
    return parser


def prepare(arguments: argparse.Namespace) -> None:
    """Set the environment that the part and its processes need."""
    os.environ["GPUPIPE_CACHE"] = str(arguments.data / "cache")
    if arguments.photos:
        os.environ["GPUPIPE_PHOTOS"] = str(arguments.photos.resolve())
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


class Part:
    """The result of a part, in OUT/NAME.json.

    A check is what must hold; a figure is what is worth knowing. `finish` marks the file as
    complete, so that the summary can tell a part that was killed.
    """

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self._path: Path = arguments.out / f"{name}.json"
        self._started = time.monotonic()
        self._result: dict[str, Any] = {
            "part": name,
            "device": arguments.device,
            "quick": arguments.quick,
            "finished": False,
            "headline": "",
            "checks": [],
            "figures": {},
        }
        arguments.out.mkdir(parents=True, exist_ok=True)
        self._write()

    def figures(self, **figures: Any) -> None:
        self._result["figures"] |= figures
        self._write()

    def check(self, what: str, holds: bool, found: str = "") -> None:
        self._result["checks"].append({"check": what, "holds": bool(holds), "found": found})
        harness.say(f"{'holds' if holds else 'FAILS'}: {what}: {found}")
        self._write()

    def headline(self, text: str) -> None:
        """The line of this part in the summary."""
        self._result["headline"] = text
        self._write()

    def attempt(self, what: str, run: Callable[[], None]) -> None:
        """Run one stage; where it raises, that is a check that fails, and the next stage runs."""
        try:
            run()
        except Exception as e:
            self.check(f"{what} runs to its end", False, f"{type(e).__name__}: {e}"[-3000:])

    def finish(self) -> None:
        """Write the result and end the process: status 1 where a check failed."""
        self._result["finished"] = True
        self._write()
        sys.exit(0 if all(c["holds"] for c in self._result["checks"]) else 1)

    def _write(self) -> None:
        seconds = round(time.monotonic() - self._started, 1)
        text = json.dumps(self._result | {"seconds": seconds}, indent=1)
        making = self._path.with_suffix(".writing")
        making.write_text(text + "\n", encoding="utf-8")
        making.replace(self._path)


def stage(script: str, arguments: argparse.Namespace, *words: str, limit: float) -> dict[str, Any]:
    """Run one stage of a part in a process of its own, which may crash; return what it prints.

    Args:
        script: The part's file.
        arguments: The options of the part.
        *words: The stage and its arguments.
        limit: Seconds on a GPU. A CPU may take ten times as long: the limit saves a GPU's time.

    Raises:
        RuntimeError: The stage fails, or is not done in time.
    """
    limit *= 10 if arguments.device == "cpu" else 1
    shared = ["--out", str(arguments.out), "--data", str(arguments.data)]
    shared += ["--device", arguments.device, *(["--quick"] if arguments.quick else [])]
    return harness.fresh(script, *shared, "--stage", *words, limit=limit)


def images(arguments: argparse.Namespace, kind: str, count: int) -> tuple[Path, str]:
    """A folder of `count` JPEGs ("lfw": 250x250, "imagenet": 500x375), and what they are.

    Call it before torch is imported: it starts processes by fork.
    """
    import photos

    arguments.data.mkdir(parents=True, exist_ok=True)
    try:
        photos.photographs()
    except FileNotFoundError:
        return photos.drawn(arguments.data, count), "drawn 250x250 images, not photographs"
    make = {"lfw": photos.lfw_like, "imagenet": photos.imagenet_like}[kind]
    root = make(arguments.data, count)
    return root, f"windows of photographs, {root.name}"
