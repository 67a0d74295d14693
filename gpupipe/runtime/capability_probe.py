"""Probes what DALI and nvJPEG can do on a device.

The probe runs in a child process: a decoder may crash, and the parent could not catch that.

nvImageCodec sets samples up on several threads only if the batch has more than 4 * (num_threads +
1) samples (DALI's image_decoder.h). Its code path also depends on the batch size, on mixed chroma
subsampling, and on the share of the hardware decoder. The child therefore decodes batches of 1
image, of 128 equal images and of 132 different ones, on 16 threads, with each share. This file
imports nothing from gpupipe, because the child runs it by its path.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

_SECONDS = 120
_START = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__')"
_THREADS, _MANY = 16, 128
"""Threads of DALI, and images in a large batch. With 4 * (_THREADS + 1) images or fewer, one thread
would set all of them up.
"""
_STAGES = ("pipeline", "decode", "region")
NVJPEG = ("nvidia-nvjpeg-cu12", "nvidia-nvjpeg", "nvidia-nvjpeg-cu13")
NVIMGCODEC = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
_BROKEN = ("0.9.0",)
"""Versions of nvImageCodec that fail or crash on some GPUs when they decode parts of images:
github.com/NVIDIA/nvImageCodec/issues/55.
"""
_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE of nvjpeg.h
_NO_MEMORY = re.compile(
    r"out.of.memory|bad_?alloc|MemoryError|memory allocation|allocation failed|cannot "
    r"allocate|can't allocate|failure: '#(5|15)'",
    re.IGNORECASE,
)
"""Out-of-memory messages of CUDA, DALI, C++, Python and the C library. In nvimgcodec.h the
allocator failures have the numbers 5 and 15.
"""
_ABSENT = (7, 9)  # NVJPEG_STATUS_ARCH_MISMATCH, NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED


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
class Engines:
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
    broken = broken_codec() if device_id is not None and not even_if_broken else ""
    output, reason, conclusive = _child(
        "decode", "cpu" if device_id is None else str(device_id), *([] if broken else ["region"])
    )
    passed = [stage in output.split() for stage in _STAGES]
    # A child that crashes at exit may have corrupted memory while it decoded.
    return ProbeOutcome(
        passed[0], passed[1], passed[2] and not reason, reason or broken, conclusive
    )


def broken_codec() -> str:
    """Return why the installed nvImageCodec cannot decode parts of images reliably.

    Returns:
        The reason, or "" if no fault of the installed version is known.
    """
    return known_to_break(installed(NVIMGCODEC))


def known_to_break(version: str | None) -> str:
    """Return why a version of nvImageCodec cannot decode parts of images reliably.

    Args:
        version: For example "0.9.0" or "0.9.0.20"; None if nvImageCodec is not installed.

    Returns:
        The reason, or "" if no fault of this version is known.
    """
    if version is None or not any(version == v or version.startswith(f"{v}.") for v in _BROKEN):
        return ""
    return f"nvImageCodec {version} fails or crashes on parts of images (its issue 55)"


def installed(names: Sequence[str]) -> str | None:
    """Return the version of the first of these packages that is installed, or None."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def region_decode_survives(device_id: int) -> bool:
    """Return whether region-of-interest decoding works on GPU `device_id`.

    Takes some seconds on the first call in a process.
    """
    return probe(device_id).region


@cache
def jpeg_engines(device_id: int) -> Engines:
    """Return the hardware JPEG decoder of GPU `device_id`.

    Asks nvJPEG for its hardware back end, as DALI's decoder does. The answer is cached for the
    lifetime of this process.
    """
    visible = visible_device(os.environ.get("CUDA_VISIBLE_DEVICES"), device_id)
    output, reason, _ = _child("engines", CUDA_VISIBLE_DEVICES=visible)
    fields = output.split()
    return (
        Engines(None, 0, reason or "nothing was said")
        if reason or len(fields) != 2
        else Engines(int(fields[0]), int(fields[1]))
    )


def visible_device(setting: str | None, device_id: int) -> str:
    """Return the CUDA_VISIBLE_DEVICES with which a child sees one GPU only.

    Args:
        setting: CUDA_VISIBLE_DEVICES of this process; None if it is not set.
        device_id: Number of the GPU under `setting`.
    """
    visible = [s.strip() for s in setting.split(",")] if setting else []
    return visible[device_id] if device_id < len(visible) else str(device_id)


def _child(*arguments: str, **environment: str) -> tuple[str, str, bool]:
    """Run this file in a child process.

    Returns its output, why it failed ("" if it did not), and if another try would end the same.
    """
    command = [sys.executable, "-c", _START, __file__, *arguments]
    try:
        completed = subprocess.run(
            command,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            env=os.environ | environment,
        )
    except subprocess.TimeoutExpired as e:
        return _text(e.stdout), f"no answer within {_SECONDS} s", False
    except OSError as e:  # fork() needs memory too
        return "", str(e), False
    reason = why_it_ended(completed.returncode, _text(completed.stderr))
    return _text(completed.stdout), reason, not lacked_memory(completed.returncode, reason)


def lacked_memory(returncode: int, reason: str) -> bool:
    """Return whether a child ended for lack of memory.

    True if `reason` says so, or on SIGKILL, which Linux sends when memory runs out.
    """
    return returncode == -signal.SIGKILL or bool(_NO_MEMORY.search(reason))


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def why_it_ended(returncode: int, stderr: str) -> str:
    """Return why a child ended: "" for success, a signal's name, or the last line of stderr."""
    if returncode < 0:
        signal_names = {s.value: s.name for s in signal.Signals}
        return f"crashed with {signal_names.get(-returncode, f'signal {-returncode}')}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return "" if returncode == 0 else (lines[-1] if lines else f"exit status {returncode}")


# --- the code of the child process


def _decode(device: str, region: str = "") -> None:
    """Print each stage that `device` ("cpu" or a GPU's number) passes; raise at the first failure.

    Parts of images are tried only if `region` is not empty.
    """
    device_id = None if device == "cpu" else int(device)
    _check_compute(device_id)
    print("pipeline", flush=True)
    for load in loads(device_id):
        for images in _batches():
            _decoded(device_id, images, load)
    print("decode", flush=True)
    if not region:
        return
    for load in loads(device_id):
        for gray in (False, True):
            for images in _batches():
                whole = _decoded(device_id, images, load, gray)
                windows = [_window(n, image.shape) for n, image in enumerate(whole)]
                _compare(_decoded(device_id, images, load, gray, windows), whole)
    print("region", flush=True)


def loads(device_id: int | None) -> tuple[float | None, ...]:
    """Return the values of `hw_decoder_load` to try; a CPU has none, so (None,)."""
    return (None,) if device_id is None else (0.0, 0.9, 1.0)


def _check_compute(device_id: int | None) -> None:
    """Raise an exception if DALI cannot run a kernel on the device."""
    import numpy as np
    from nvidia.dali import fn

    def graph() -> Any:
        numbers = fn.external_source(lambda: [np.arange(8, dtype=np.float32)], batch=True)
        return (numbers if device_id is None else numbers.gpu()) * 2

    assert _run_pipeline(device_id, 1, graph)[0].tolist() == list(range(0, 16, 2))


def _run_pipeline(
    device_id: int | None, batch_size: int, graph: Callable[[], Any], times: int = 1
) -> list[Any]:
    """Build a pipeline, run it `times` times, and return the last batch as arrays."""
    from nvidia.dali import Pipeline

    pipe = Pipeline(
        batch_size=batch_size, num_threads=_THREADS, device_id=device_id, exec_dynamic=True
    )
    with pipe:
        pipe.set_outputs(graph())
    for _ in range(times):
        (batch,) = pipe.run()
    return [batch.as_cpu().at(n).copy() for n in range(batch_size)]


def _decoded(
    device_id: int | None,
    images: list[Any],
    load: float | None,
    gray: bool = False,
    windows: list[Any] | None = None,
) -> list[Any]:
    """Return the pixels of JPEG images, or of one (start, shape) window in each."""
    device = "cpu" if device_id is None else "mixed"
    return _run_pipeline(
        device_id,
        len(images),
        lambda: decoder(device, images, load, gray, windows),
        times=1 if device_id is None else 3,
    )


def decoder(
    device: str, images: list[Any], load: float | None, gray: bool, windows: list[Any] | None
) -> Any:
    """Return the DataNode of the decoder, with the options of gpupipe.engines.dali.ops.decode.

    Args:
        device: "cpu" or "mixed".
        images: JPEG files, uint8 (n,) each.
        load: `hw_decoder_load`; None leaves DALI's default.
        gray: Decode to one channel instead of RGB.
        windows: One (start, shape) in (height, width) order for each image; None for whole images.
    """
    from nvidia.dali import fn, types

    options: dict[str, Any] = {
        "device": device,
        "jpeg_fancy_upsampling": True,
        "adjust_orientation": True,
    }
    options |= {"output_type": types.GRAY if gray else types.RGB} | (
        {} if load is None else {"hw_decoder_load": load}
    )
    data = fn.external_source(lambda: images, batch=True)
    if windows is None:
        return fn.decoders.image(data, **options)
    start, shape = fn.external_source(
        lambda: tuple([w[i] for w in windows] for i in range(2)), batch=True, num_outputs=2
    )
    return fn.decoders.image_slice(data, start=start, shape=shape, axes=[0, 1], **options)


@cache
def _batches() -> list[list[Any]]:
    """Return three batches of JPEG images: one image, one image many times, and many of six kinds.

    In `_jpeg`, `subsampling` is 0 for 4:4:4, 1 for 4:2:2 and 2 for 4:2:0 chroma.
    """
    plain = _jpeg(480, 640, subsampling=2)
    chroma = [_jpeg(375, 500, subsampling=0), _jpeg(250, 250, subsampling=1)]
    others = [
        _jpeg(333, 500, subsampling=2, progressive=True),
        _jpeg(375, 500, subsampling=2, turned=6),
        _jpeg(300, 400, gray=True),
    ]
    kinds = [plain, *chroma, *others]
    return [[plain], [plain] * _MANY, kinds * -(-_MANY // len(kinds))]


def _jpeg(height: int, width: int, turned: int = 1, gray: bool = False, **options: Any) -> Any:
    """Return a JPEG file of soft blobs, so that a window cut elsewhere has clearly other pixels.

    `turned` is the image's EXIF orientation.
    """
    import io

    import numpy as np
    from PIL import ExifTags, Image

    buffer = io.BytesIO()
    blobs = np.random.default_rng(0).integers(0, 255, (height // 16, width // 16, 3), np.uint8)
    image = Image.fromarray(blobs).resize((width, height)).convert("L" if gray else "RGB")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = turned
    image.save(buffer, "JPEG", quality=90, exif=exif, **options)
    return np.frombuffer(buffer.getvalue(), np.uint8)


def _window(n: int, shape: tuple[int, ...]) -> Any:
    """Return start and shape of window `n`: inside, a far corner, all of it, or an odd strip."""
    import numpy as np

    high, wide = shape[:2]
    windows = [
        ((10, 20), (200, 200)),
        ((high - 64, wide - 96), (64, 96)),
        ((0, 0), (high, wide)),
        ((101, 33), (17, 199)),
    ]
    start, size = windows[(n + n // 6) % 4]  # each of the six images meets each window
    return np.array(start, np.int32), np.array(size, np.int32)


def _compare(parts: list[Any], whole: list[Any]) -> None:
    """Raise ValueError if a part differs from its window; decoders may differ by a few levels."""
    import numpy as np

    for n, (part, image) in enumerate(zip(parts, whole, strict=True)):
        (top, left), (high, wide) = _window(n, image.shape)
        expected = image[top : top + high, left : left + wide].astype(float)
        difference = (
            float(np.abs(part - expected).mean()) if part.shape == expected.shape else 255.0
        )
        if difference > 4:
            raise ValueError(
                f"a part of an image came out wrong, by {difference:.1f} levels on average"
            )


def _engines() -> None:
    """Print how many engines nvJPEG counts on the visible GPU, and how many cores each has."""
    import ctypes

    library = ctypes.CDLL(_library())
    handle, number, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    status = library.nvjpegCreateEx(_HARDWARE, None, None, 0, ctypes.byref(handle))
    if status == 0:
        status = library.nvjpegGetHardwareDecoderInfo(
            handle, ctypes.byref(number), ctypes.byref(cores)
        )
    if status not in (0, *_ABSENT):
        sys.exit(f"nvJPEG status {status}")
    print(number.value, cores.value)


def _library() -> str:
    """Return the path of the nvJPEG that DALI installed, or the name of the system's library."""
    for name in NVJPEG:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        paths = [str(f.locate()) for f in files if f.name.startswith("libnvjpeg.so")]
        if paths:
            return paths[0]
    return "libnvjpeg.so.12"


def _main(task: str, *arguments: str) -> None:
    import resource

    # An expected crash must not leave a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tasks: dict[str, Callable[..., None]] = {"decode": _decode, "engines": _engines}
    try:
        tasks[task](*arguments)
    except Exception as e:
        # The leading newline: lines that CUDA's libraries print may lack their own.
        sys.exit(f"\n{type(e).__name__}: {short(str(e))}")


def short(message: str) -> str:
    """Return the cause in an error message of DALI, at most 300 characters.

    DALI's messages begin with the place in the graph and end by saying that the pipeline is lost.
    """
    core = message.rpartition("encountered:")[2].replace(
        "Current pipeline object is no longer valid.", ""
    )
    return " ".join(core.split())[:300]


if __name__ == "__main__":
    _main(*sys.argv[2:])
