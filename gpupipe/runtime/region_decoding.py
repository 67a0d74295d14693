"""Whether a GPU may be asked to decode parts of images: by nvImageCodec's version, else by a probe,
once a machine.

The answer is kept in the cache folder under everything that it depends on. Ranks that start
together wait for the first one's probe.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpupipe.runtime import nvml
from gpupipe.runtime.cache_dir import cache_dir
from gpupipe.runtime.capability_probe import (
    NVIMGCODEC,
    NVJPEG,
    ProbeOutcome,
    broken_codec,
    installed,
    probe,
)

_log = logging.getLogger("gpupipe")
_FILE = "region-decode.json"
_LOCK = "region-decode.lock"


@dataclass(frozen=True)
class Answer:
    """Whether parts of images are decoded right, and why not; `lasting`: whether it holds for later
    runs too.
    """

    works: bool
    reason: str = ""
    lasting: bool = True


@cache
def region_decode(number: int) -> bool:
    """Whether GPU `number` decodes parts of images.

    Once in a process; where no process of this machine asked before, it takes some seconds.
    """
    broken = broken_codec()
    if broken:
        _log.info("GPU %d decodes whole images: %s", number, broken)
        return False
    answer = ask_once(key(number), lambda: _answer(probe(number)))
    if not answer.lasting:
        _log.warning(
            "whether GPU %d decodes parts of images could not be found out: %s. This run "
            "decodes whole images, and the next one asks again",
            number,
            answer.reason,
        )
    elif not answer.works:
        _log.info("GPU %d decodes whole images: %s", number, answer.reason)
    return answer.works


def _answer(outcome: ProbeOutcome) -> Answer:
    """A GPU on which DALI did not get as far as whole images has said nothing about parts of
    them.
    """
    return Answer(
        outcome.region, outcome.reason, outcome.region or (outcome.decode and outcome.conclusive)
    )


def key(number: int) -> str:
    """All that the answer depends on: GPU, driver, DALI, nvImageCodec, nvJPEG."""
    import torch
    from nvidia.dali import __version__ as dali

    return versions(torch.cuda.get_device_name(number), dali)


def versions(gpu: str, dali: str) -> str:
    """The key of a GPU and a DALI."""
    others = {
        "driver": nvml.driver_version(),
        "DALI": dali,
        "nvImageCodec": installed(NVIMGCODEC),
        "nvJPEG": installed(NVJPEG),
    }
    return ", ".join([gpu, *(f"{name} {version or 'unknown'}" for name, version in others.items())])


def ask_once(key: str, ask: Callable[[], Answer]) -> Answer:
    """The answer that is kept under `key`, else what `ask` says.

    One process asks at a time. Those that waited for it take its answer, also one that does not
    last and so is not kept.
    """
    file = cache_dir() / _FILE
    kept = _kept(file).get(key)
    if kept is not None:
        return kept
    with _turn(cache_dir() / _LOCK) as turn:
        answer = _kept(file).get(key) or turn.said_meanwhile(key)
        if answer is not None:
            return answer
        answer = ask()
        if answer.lasting:
            _keep(file, key, answer)
        else:
            turn.say(key, answer)
        return answer


def _kept(file: Path) -> dict[str, Answer]:
    entries = _read(file)
    sound = {
        k: e for k, e in entries.items() if isinstance(e, dict) and isinstance(e.get("works"), bool)
    }
    return {k: Answer(e["works"], str(e.get("reason", ""))) for k, e in sound.items()}


def _keep(file: Path, key: str, answer: Answer) -> None:
    entries = {
        k: {"works": a.works, "reason": a.reason} for k, a in (_kept(file) | {key: answer}).items()
    }
    beside = file.with_name(f"{file.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        beside.write_text(json.dumps(entries, indent=1), encoding="utf-8")
        beside.replace(file)


def _read(file: Path) -> dict[str, Any]:
    """What a file of JSON says; {} where there is none, or no object in it."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class _Turn:
    """A process's turn to ask.

    The lock's file holds the last answer that does not last, for those that were waiting when it
    was given.
    """

    def __init__(self, file: Path | None, before: dict[str, Any]) -> None:
        self._file, self._before = file, before

    def said_meanwhile(self, key: str) -> Answer | None:
        said = {} if self._file is None else _read(self._file)
        if said == self._before or said.get("key") != key:
            return None
        return Answer(False, str(said.get("reason", "")), lasting=False)

    def say(self, key: str, answer: Answer) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write_text(
                    json.dumps({"key": key, "reason": answer.reason, "id": uuid.uuid4().hex}),
                    encoding="utf-8",
                )


@contextlib.contextmanager
def _turn(file: Path) -> Iterator[_Turn]:
    """Wait for this process's turn. Where the cache folder cannot be written there are no turns."""
    before = _read(file)
    with contextlib.ExitStack() as held:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            handle = held.enter_context(file.open("ab"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            yield _Turn(None, {})
            return
        held.callback(
            fcntl.flock, handle, fcntl.LOCK_UN
        )  # closing alone does not, where another thread forked meanwhile
        yield _Turn(file, before)
