"""Probes what DALI and nvJPEG can do on a device.

The probe runs in a child process (capability_probe_child): a decoder may crash, and the parent
could not catch that.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from dataclasses import dataclass
from functools import cache

from gpupipe.runtime import capability_probe_child, child_process
from gpupipe.runtime.installation import installed_version, parse_release

_SECONDS = 120
_START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
_STAGES = ("pipeline", "decode", "region")
NVIMGCODEC = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
_BROKEN = ("0.9.0",)
"""Versions of nvImageCodec that fail or crash on some GPUs when they decode parts of images:
github.com/NVIDIA/nvImageCodec/issues/55.
"""
_FIRST_NVJPEG = (13, 2)
"""nvImageCodec says that parts of images may have wrong edges with an older nvJPEG, where chroma is
upsampled as gpupipe does it. CUDA 13.3 brings 13.2, and its release notes list the fix.
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
    """How far DALI gets on a device.

    Attributes:
        pipeline: Whether a DALI pipeline computes on the device.
        decode: Whether it decodes whole images.
        region: Whether it decodes parts of images, with the right pixels.
        reason: Why DALI stopped, or why parts of images were not tried; empty if neither happened.
        conclusive: Whether another try would end the same. False after a time-out or a lack of
            memory, which depend on the moment and not on the device.
    """

    pipeline: bool
    decode: bool
    region: bool
    reason: str = ""
    conclusive: bool = True


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
        even_if_broken: Decode parts of images even if this version of nvImageCodec is known to
            fail.
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
    return codec_fault(
        installed_version(*NVIMGCODEC), installed_version(*capability_probe_child.NVJPEG)
    )


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
def jpeg_engines(device_id: int) -> JpegEngines:
    """Return the hardware JPEG decoder of GPU `device_id`.

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
    """Return the CUDA_VISIBLE_DEVICES with which a child sees one GPU only.

    Args:
        setting: CUDA_VISIBLE_DEVICES of this process; None if it is not set.
        device_id: Number of the GPU under `setting`.
    """
    visible = [s.strip() for s in setting.split(",")] if setting else []
    return visible[device_id] if device_id < len(visible) else str(device_id)


def _run_child(*arguments: str, **environment: str) -> tuple[str, str, bool]:
    """Run capability_probe_child in a process of its own.

    Returns its output, why it failed ("" if it did not), and if another try would end the same.
    """
    command = ("-c", _START, capability_probe_child.__file__, *arguments)
    try:
        child = child_process.run(*command, timeout=_SECONDS, env=os.environ | environment)
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
    return returncode == -signal.SIGKILL or bool(_NO_MEMORY.search(reason))


def _decode(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def describe_exit(returncode: int, stderr: str) -> str:
    """Return why a child ended: "" for success, a signal's name, or the last line of stderr."""
    if returncode < 0:
        signal_names = {s.value: s.name for s in signal.Signals}
        return f"crashed with {signal_names.get(-returncode, f'signal {-returncode}')}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return "" if returncode == 0 else (lines[-1] if lines else f"exit status {returncode}")
