"""Probes what DALI and nvJPEG can do on a device.

The probe runs in a child process (capability_probe_child): a decoder may crash, and the parent
could not catch that.

Each machine probes only once whether a GPU decodes parts of images. The cache folder stores the
outcome under a key that names the GPU and the versions. If ranks start together, one probes and the
others wait for its outcome. Each stored outcome has a random id, so that a rank that waited can
tell a new outcome from an old one that is equal.
"""

import contextlib
import json
import logging
import os
import re
import subprocess
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from gpupipe.runtime import capability_probe_child
from gpupipe.runtime.capability_probe_child import NVJPEG
from gpupipe.runtime.devices import find_driver
from gpupipe.runtime.file_locks import hold_lock
from gpupipe.runtime.files import cache_dir, read_json_object, write_atomically
from gpupipe.runtime.installation import installed_version, parse_release
from gpupipe.runtime.process import name_signal, run_python

_log = logging.getLogger("gpupipe")
_FILE, _LOCK = "region-decode.json", "region-decode.lock"
_SECONDS = 120
_START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
_STAGES = ("pipeline", "decode", "region")
NVIMGCODEC = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
_BROKEN = ("0.9.0",)
"""Versions of nvImageCodec that fail or crash on some GPUs when they decode parts of images:
github.com/NVIDIA/nvImageCodec/issues/55.
"""
_FIRST_NVJPEG = (13, 2)
"""With an older nvJPEG and gpupipe's chroma upsampling, parts of images may have wrong edges,
according to nvImageCodec. The release notes of CUDA 13.3, which has nvJPEG 13.2, list the fix.
"""
_NO_MEMORY = re.compile(
    r"out.of.memory|bad_?alloc|MemoryError|memory allocation|allocation failed|cannot "
    r"allocate|can't allocate|failure: '#(5|15)'",
    re.IGNORECASE,
)
"""Out-of-memory messages of CUDA, DALI, C++, Python and the C library. In nvimgcodec.h the
allocator failures have the numbers 5 and 15.
"""


@dataclass(frozen=True)
class ProbeOutcome:
    """What DALI can do on a device, found out by a probe.

    Attributes:
        pipeline: Whether a DALI pipeline computes on the device.
        decode: Whether DALI decodes whole images.
        region: Whether DALI decodes parts of images, with the right pixels.
        reason: Why DALI stopped, or why parts of images were not tried; empty if neither happened.
        conclusive: Whether another probe would have the same outcome. False after a time-out or a
            lack of memory, which may be temporary.
    """

    pipeline: bool
    decode: bool
    region: bool
    reason: str = ""
    conclusive: bool = True

    @property
    def is_lasting(self) -> bool:
        """Whether later runs can rely on `region`.

        They can if `region` is true, or if whole images were decoded and the probe is conclusive.
        """
        return self.region or (self.decode and self.conclusive)


@dataclass(frozen=True)
class JpegEngines:
    """The hardware JPEG decoder of a GPU, as nvJPEG reports it.

    Attributes:
        number: Number of engines, 0 if the GPU has none; None if nvJPEG did not answer.
        cores: Cores in each engine.
        reason: Why nvJPEG did not answer; otherwise empty.
    """

    number: int | None
    cores: int = 0
    reason: str = ""


@cache
def probe(device_id: int | None, even_if_broken: bool = False) -> ProbeOutcome:
    """Probe what DALI can do on a device, in a child process that takes some seconds.

    The outcome is cached for the lifetime of this process.

    Args:
        device_id: CUDA's number of the GPU; None for the CPU.
        even_if_broken: Decode parts of images even if the installed nvImageCodec or nvJPEG is known
            to be faulty.
    """
    broken = installed_codec_fault() if device_id is not None and not even_if_broken else ""
    device = "cpu" if device_id is None else str(device_id)
    output, reason, conclusive = _run_child("decode", device, *([] if broken else ["region"]))
    pipeline, decode, region = (stage in output.split() for stage in _STAGES)
    # A child that crashes at exit may have corrupted memory while it decoded.
    region = region and not reason
    return ProbeOutcome(pipeline, decode, region, reason or broken, conclusive)


def installed_codec_fault() -> str:
    """Return why the installed nvImageCodec cannot decode parts of images reliably.

    Returns:
        The reason, or "" if no fault of the installed version is known.
    """
    return codec_fault(installed_version(*NVIMGCODEC), installed_version(*NVJPEG))


def codec_fault(nvimgcodec: str | None, nvjpeg: str | None) -> str:
    """Return why nvImageCodec with nvJPEG cannot decode parts of images reliably.

    Args:
        nvimgcodec: For example "0.9.0" or "0.9.0.20"; None if nvImageCodec is not installed.
        nvjpeg: For example "12.4.0.76"; None if its version is unknown.

    Returns:
        The reason, or "" if no fault of these versions is known.
    """
    if any(f"{nvimgcodec}.".startswith(f"{broken}.") for broken in _BROKEN):
        return f"nvImageCodec {nvimgcodec} fails or crashes on parts of images (its issue 55)"
    if nvjpeg is None or parse_release(nvjpeg)[:2] < _FIRST_NVJPEG:
        return (
            f"nvJPEG {nvjpeg or 'of unknown version'} may make the edges of parts of images "
            "wrong; 13.2 is the first that does not"
        )
    return ""


@cache
def can_decode_regions(number: int) -> bool:
    """Return whether GPU `number` decodes parts of images; log the reason if not.

    The first call takes some seconds if the cache folder has no outcome for this GPU.
    """
    if fault := installed_codec_fault():
        _log.info("GPU %d decodes whole images: %s", number, fault)
        return False
    outcome = probe_once(region_key(number), lambda: probe(number))
    if not outcome.is_lasting:
        _log.warning(
            "whether GPU %d decodes parts of images could not be found out: %s. This run "
            "decodes whole images, and the next one asks again",
            number,
            outcome.reason,
        )
    elif not outcome.region:
        _log.info("GPU %d decodes whole images: %s", number, outcome.reason)
    return outcome.region


def region_key(number: int) -> str:
    """Return the key under which the probe's outcome for GPU `number` is stored.

    It consists of the GPU's name and the versions of the driver and of the decoding libraries.
    """
    import torch
    from nvidia.dali import __version__ as dali

    return describe_versions(torch.cuda.get_device_name(number), dali)


def describe_versions(gpu: str, dali: str) -> str:
    """Return the key of a stored outcome: the GPU's name, and versions of driver and libraries."""
    driver = find_driver()
    versions = {
        "driver": driver and driver.version,
        "DALI": dali,
        "nvImageCodec": installed_version(*NVIMGCODEC),
        "nvJPEG": installed_version(*NVJPEG),
    }
    return ", ".join(
        [gpu, *(f"{name} {version or 'unknown'}" for name, version in versions.items())]
    )


def probe_once(key: str, ask: Callable[[], ProbeOutcome]) -> ProbeOutcome:
    """Return the outcome stored for `key`; if there is none, call `ask` and store its outcome.

    A stored outcome counts only if `is_lasting`. One process at a time calls `ask`. Processes that
    waited for this call use its outcome, even if it is not lasting. Without a writable cache
    folder, each process calls `ask`.

    Args:
        key: The cache key, from `region_key`.
        ask: Runs the probe.
    """
    file = cache_dir() / _FILE
    before = read_json_object(file)
    stored = _read_outcome(before, key)
    if stored is not None and stored.is_lasting:
        return stored
    with contextlib.ExitStack() as stack:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(cache_dir() / _LOCK))
        except OSError:
            return ask()
        entries = read_json_object(file)
        stored = _read_outcome(entries, key)
        if stored is not None and (stored.is_lasting or entries[key] != before.get(key)):
            return stored
        outcome = ask()
        valid = {other: entries[other] for other in entries if _read_outcome(entries, other)}
        valid[key] = asdict(outcome) | {"id": uuid.uuid4().hex}
        with contextlib.suppress(OSError), write_atomically(file) as temporary:
            temporary.write_text(json.dumps(valid, indent=1), encoding="utf-8")
        return outcome


def _read_outcome(entries: Mapping[str, Any], key: str) -> ProbeOutcome | None:
    """Return the stored outcome for `key`; None if the entry is missing or malformed."""
    try:
        return ProbeOutcome(**{k: v for k, v in entries[key].items() if k != "id"})
    except (KeyError, TypeError, AttributeError):
        return None


@cache
def jpeg_engines(device_id: int) -> JpegEngines:
    """Return what nvJPEG says about the hardware JPEG decoder of GPU `device_id`.

    Asks nvJPEG for its hardware back end, as DALI's decoder does. The answer is cached for the
    lifetime of this process.
    """
    visible = visible_device(os.environ.get("CUDA_VISIBLE_DEVICES"), device_id)
    output, reason, _ = _run_child("engines", CUDA_VISIBLE_DEVICES=visible)
    fields = output.split()
    if reason or len(fields) != 2:
        return JpegEngines(None, 0, reason or "nothing was said")
    return JpegEngines(int(fields[0]), int(fields[1]))


def visible_device(setting: str | None, device_id: int) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES with which a child process sees only one GPU.

    Args:
        setting: CUDA_VISIBLE_DEVICES of this process; None if it is not set.
        device_id: Number of the GPU, counted among those that `setting` leaves visible.
    """
    visible = [s.strip() for s in setting.split(",")] if setting else []
    return visible[device_id] if device_id < len(visible) else str(device_id)


def _run_child(*arguments: str, **environment: str) -> tuple[str, str, bool]:
    """Run capability_probe_child in a child process.

    Returns the child's output, the reason why it failed or "", and whether the result is
    conclusive: false after a time-out or a lack of memory, which may be temporary.
    """
    command = ("-c", _START, capability_probe_child.__file__, *arguments)
    try:
        child = run_python(*command, timeout=_SECONDS, env=os.environ | environment)
    except subprocess.TimeoutExpired as e:
        return _decode(e.stdout), f"no answer within {_SECONDS} s", False
    except OSError as e:  # fork() needs memory too
        return "", str(e), False
    reason = describe_exit(child.returncode, _decode(child.stderr))
    return _decode(child.stdout), reason, not ran_out_of_memory(child.returncode, reason)


def ran_out_of_memory(returncode: int, reason: str) -> bool:
    """Return whether a child ended for lack of memory.

    True if `reason` says so, or on SIGKILL, which Linux sends when memory runs out.
    """
    return name_signal(-returncode) == "SIGKILL" or bool(_NO_MEMORY.search(reason))


def _decode(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def describe_exit(returncode: int, stderr: str) -> str:
    """Return why a child ended: "" for success, a signal's name, or the last line of stderr."""
    if returncode < 0:
        return f"crashed with {name_signal(-returncode)}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return "" if returncode == 0 else (lines[-1] if lines else f"exit status {returncode}")
