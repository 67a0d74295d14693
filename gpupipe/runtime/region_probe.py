"""Decides if a GPU decodes parts of images: by versions of libraries, else by a probe per machine.

The cache folder stores the answer under everything that it depends on. Of ranks that start
together, one probes and the others wait for its answer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gpupipe.runtime import nvml
from gpupipe.runtime.capability_probe import NVIMGCODEC, ProbeOutcome, installed_codec_fault, probe
from gpupipe.runtime.capability_probe_child import NVJPEG
from gpupipe.runtime.files import cache_dir, hold_lock, read_json_object, write_atomically
from gpupipe.runtime.installation import installed_version

_log = logging.getLogger("gpupipe")
_FILE = "region-decode.json"
_LOCK = "region-decode.lock"


@dataclass(frozen=True)
class Answer:
    """Whether a GPU decodes parts of images correctly.

    Attributes:
        works: Whether it does.
        reason: Why it does not; empty if it does.
        lasting: Whether the answer also holds for later runs.
    """

    works: bool
    reason: str = ""
    lasting: bool = True


@cache
def can_decode_regions(number: int) -> bool:
    """Return whether GPU `number` decodes parts of images.

    The first call in a process takes some seconds if no process of this machine has asked before.
    Logs the reason if the answer is no.
    """
    broken = installed_codec_fault()
    if broken:
        _log.info("GPU %d decodes whole images: %s", number, broken)
        return False
    answer = probe_once(key(number), lambda: _answer(probe(number)))
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
    """Convert a probe's outcome; it says nothing about parts of images if whole images failed."""
    return Answer(
        outcome.region, outcome.reason, outcome.region or (outcome.decode and outcome.conclusive)
    )


def key(number: int) -> str:
    """Return the key of the answer for GPU `number`: GPU, driver, DALI, nvImageCodec, nvJPEG."""
    import torch
    from nvidia.dali import __version__ as dali

    return versions(torch.cuda.get_device_name(number), dali)


def versions(gpu: str, dali: str) -> str:
    """Return the key for a GPU's name and a DALI version."""
    driver = nvml.find_driver()
    parts = {
        "driver": driver and driver.version,
        "DALI": dali,
        "nvImageCodec": installed_version(*NVIMGCODEC),
        "nvJPEG": installed_version(*NVJPEG),
    }
    return ", ".join([gpu, *(f"{name} {version or 'unknown'}" for name, version in parts.items())])


def probe_once(key: str, ask: Callable[[], Answer]) -> Answer:
    """Return the stored answer for `key`, else call `ask`.

    One process at a time calls `ask`. Processes that waited for it take its answer, even one that
    is not lasting and therefore not stored.

    Args:
        key: What the answer depends on, from `key()`.
        ask: Finds the answer, for instance by a probe.
    """
    file = cache_dir() / _FILE
    stored = _stored_answers(file).get(key)
    if stored is not None:
        return stored
    with _probe_lock(cache_dir() / _LOCK) as turn:
        answer = _stored_answers(file).get(key) or turn.answer_while_waiting(key)
        if answer is not None:
            return answer
        answer = ask()
        if answer.lasting:
            _store_answer(file, key, answer)
        else:
            turn.pass_on(key, answer)
        return answer


def _stored_answers(file: Path) -> dict[str, Answer]:
    entries = read_json_object(file)
    valid = {
        k: e for k, e in entries.items() if isinstance(e, dict) and isinstance(e.get("works"), bool)
    }
    return {k: Answer(e["works"], str(e.get("reason", ""))) for k, e in valid.items()}


def _store_answer(file: Path, key: str, answer: Answer) -> None:
    answers = _stored_answers(file) | {key: answer}
    entries = {k: {"works": a.works, "reason": a.reason} for k, a in answers.items()}
    with contextlib.suppress(OSError), write_atomically(file) as temporary:
        temporary.write_text(json.dumps(entries, indent=1), encoding="utf-8")


class _ProbeLock:
    """The lock under which one process at a time probes.

    The lock file holds the last answer that is not lasting, for the processes that waited
    meanwhile.
    """

    def __init__(self, file: Path | None, before: dict[str, Any]) -> None:
        self._file, self._before = file, before

    def answer_while_waiting(self, key: str) -> Answer | None:
        passed_on = {} if self._file is None else read_json_object(self._file)
        if passed_on == self._before or passed_on.get("key") != key:
            return None
        return Answer(False, str(passed_on.get("reason", "")), lasting=False)

    def pass_on(self, key: str, answer: Answer) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write_text(
                    json.dumps({"key": key, "reason": answer.reason, "id": uuid.uuid4().hex}),
                    encoding="utf-8",
                )


@contextlib.contextmanager
def _probe_lock(file: Path) -> Iterator[_ProbeLock]:
    """Wait for the lock. Without a writable cache folder there is none, and each process probes."""
    before = read_json_object(file)
    with contextlib.ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(file))
        except OSError:
            yield _ProbeLock(None, {})
            return
        yield _ProbeLock(file, before)
