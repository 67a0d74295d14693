"""Decides if a GPU decodes parts of images: by versions of libraries, else by a probe per machine.

The cache folder stores the answer under everything that it depends on. Of ranks that start
together, one probes and the others wait for its answer. An answer that does not last has an id
there, so that a process knows if it was given while the process waited.
"""

from __future__ import annotations

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
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
    is not lasting. Without a writable cache folder, each process asks.

    Args:
        key: What the answer depends on, from `key()`.
        ask: Finds the answer, for instance by a probe.
    """
    file = cache_dir() / _FILE
    before = read_json_object(file)
    stored = _find_answer(before, key)
    if stored is not None and stored.lasting:
        return stored
    with contextlib.ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(cache_dir() / _LOCK))
        except OSError:
            return ask()
        entries = read_json_object(file)
        stored = _find_answer(entries, key)
        if stored is not None and (stored.lasting or entries[key] != before.get(key)):
            return stored
        answer = ask()
        entry = asdict(answer) | ({} if answer.lasting else {"id": uuid.uuid4().hex})
        valid = {other: entries[other] for other in entries if _find_answer(entries, other)}
        with contextlib.suppress(OSError), write_atomically(file) as temporary:
            temporary.write_text(json.dumps(valid | {key: entry}, indent=1), encoding="utf-8")
        return answer


def _find_answer(entries: Mapping[str, Any], key: str) -> Answer | None:
    """Return the answer for a key; None if there is none, or what stands there is none."""
    entry = entries.get(key)
    if not isinstance(entry, dict) or not isinstance(entry.get("works"), bool):
        return None
    return Answer(entry["works"], str(entry.get("reason", "")), entry.get("lasting", True) is True)
