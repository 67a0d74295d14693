"""What DALI and nvJPEG can do on a device, tried in a child process, since a decoder may crash and
nothing can catch that.

nvImageCodec sets samples up on several threads only in batches of more than 4 samples for each
thread and one (DALI's image_decoder.h), and the path that it takes depends on the size of a batch,
on whether its images differ in chroma subsampling, and on the share of the hardware decoder. So the
child decodes batches of one image, of 128 alike and of 132 that differ, on 16 threads, with each
share. This file imports nothing of gpupipe: the child runs it by its path.
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
"""Threads of DALI, and images of a large batch: more than 4 for each thread and one, or a single
thread sets all of them up.
"""
_STAGES = ("pipeline", "decode", "region")
NVJPEG = ("nvidia-nvjpeg-cu12", "nvidia-nvjpeg", "nvidia-nvjpeg-cu13")
NVIMGCODEC = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")
_BROKEN = ("0.9.0",)
"""Versions of nvImageCodec that fail or crash on parts of images, on some GPUs and not on others:
github.com/NVIDIA/nvImageCodec/issues/55.
"""
_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE of nvjpeg.h
_NO_MEMORY = re.compile(
    r"out.of.memory|bad_?alloc|MemoryError|memory allocation|allocation failed|cannot "
    r"allocate|can't allocate|failure: '#(5|15)'",
    re.IGNORECASE,
)
"""Said by CUDA, DALI, C++, Python, the C library; nvImageCodec's ALLOCATOR_FAILURE are 5 and 15 in
nvimgcodec.h.
"""
_ABSENT = (7, 9)  # NVJPEG_STATUS_ARCH_MISMATCH, NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED


@dataclass(frozen=True)
class ProbeOutcome:
    """How far DALI came on a device; `reason` is what stopped it, and empty where nothing did.

    pipeline: it computes there. decode: it decodes whole images. region: it decodes parts of
    images, and the pixels are right. conclusive: the same would come of another try. A time-out and
    a lack of memory tell of the moment, and not of the device.
    """

    pipeline: bool
    decode: bool
    region: bool
    reason: str = ""
    conclusive: bool = True


@dataclass(frozen=True)
class Engines:
    """A GPU's hardware JPEG decoder, as nvJPEG counts it; `number` is None where it gave no answer,
    and `reason` says why.
    """

    number: int | None
    cores: int = 0
    reason: str = ""


@cache
def probe(device_id: int | None, even_if_broken: bool = False) -> ProbeOutcome:
    """What DALI can do on GPU `device_id`, or on the CPU (None). Takes some seconds, once in a
    process.

    even_if_broken: also try parts of images on a GPU where the version of nvImageCodec is known to
    fail there.
    """
    broken = broken_codec() if device_id is not None and not even_if_broken else ""
    said, reason, conclusive = _child(
        "decode", "cpu" if device_id is None else str(device_id), *([] if broken else ["region"])
    )
    passed = [stage in said.split() for stage in _STAGES]
    # A child that dies on its way out may have spoilt memory while it decoded.
    return ProbeOutcome(
        passed[0], passed[1], passed[2] and not reason, reason or broken, conclusive
    )


def broken_codec() -> str:
    """Why the nvImageCodec that is installed cannot be trusted with parts of images; empty where
    nothing is known against it.
    """
    return known_to_break(installed(NVIMGCODEC))


def known_to_break(version: str | None) -> str:
    """The same of a version, as 0.9.0 or 0.9.0.20; None: not installed."""
    if version is None or not any(version == v or version.startswith(f"{v}.") for v in _BROKEN):
        return ""
    return f"nvImageCodec {version} fails or crashes on parts of images (its issue 55)"


def installed(names: Sequence[str]) -> str | None:
    """The version of the first of these packages that is installed."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def region_decode_survives(device_id: int) -> bool:
    """Whether region-of-interest decoding works on GPU `device_id`.

    Takes some seconds, once in a process.
    """
    return probe(device_id).region


@cache
def jpeg_engines(device_id: int) -> Engines:
    """The hardware JPEG decoder of GPU `device_id`, found the way DALI's decoder finds it: by
    asking nvJPEG for that back end.
    """
    visible = visible_device(os.environ.get("CUDA_VISIBLE_DEVICES"), device_id)
    said, reason, _ = _child("engines", CUDA_VISIBLE_DEVICES=visible)
    words = said.split()
    return (
        Engines(None, 0, reason or "nothing was said")
        if reason or len(words) != 2
        else Engines(int(words[0]), int(words[1]))
    )


def visible_device(setting: str | None, device_id: int) -> str:
    """What CUDA_VISIBLE_DEVICES must be for a child to see only what is GPU `device_id` under
    `setting`.
    """
    shown = [s.strip() for s in setting.split(",")] if setting else []
    return shown[device_id] if device_id < len(shown) else str(device_id)


def _child(*arguments: str, **environment: str) -> tuple[str, str, bool]:
    """What a child said, why it failed (empty where it did not), and whether another would do the
    same.
    """
    command = [sys.executable, "-c", _START, __file__, *arguments]
    try:
        done = subprocess.run(
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
    reason = why_it_ended(done.returncode, _text(done.stderr))
    return _text(done.stdout), reason, not lacked_memory(done.returncode, reason)


def lacked_memory(returncode: int, reason: str) -> bool:
    """Whether a child ended for lack of memory: by what it said, or killed, as Linux does when
    there is none left.
    """
    return returncode == -signal.SIGKILL or bool(_NO_MEMORY.search(reason))


def _text(output: bytes | None) -> str:
    return (output or b"").decode(errors="replace")


def why_it_ended(returncode: int, stderr: str) -> str:
    """The reason behind an exit status: empty, a signal's name, or the last line of stderr."""
    if returncode < 0:
        known = {s.value: s.name for s in signal.Signals}
        return f"crashed with {known.get(-returncode, f'signal {-returncode}')}"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return "" if returncode == 0 else (lines[-1] if lines else f"exit status {returncode}")


# --- what the child does


def _decode(device: str, region: str = "") -> None:
    """Say each stage that `device` ("cpu" or a GPU's number) passes; an exception ends it.

    region: also try parts of images.
    """
    device_id = None if device == "cpu" else int(device)
    _compute(device_id)
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
    """The shares of images for the hardware decoder that are tried; a CPU has none."""
    return (None,) if device_id is None else (0.0, 0.9, 1.0)


def _compute(device_id: int | None) -> None:
    """Raises where DALI cannot run a kernel there."""
    import numpy as np
    from nvidia.dali import fn

    def graph() -> Any:
        numbers = fn.external_source(lambda: [np.arange(8, dtype=np.float32)], batch=True)
        return (numbers if device_id is None else numbers.gpu()) * 2

    assert _ran(device_id, 1, graph)[0].tolist() == list(range(0, 16, 2))


def _ran(
    device_id: int | None, batch_size: int, graph: Callable[[], Any], times: int = 1
) -> list[Any]:
    """The last batch of a pipeline, as arrays."""
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
    """Pixels of JPEG images, or of (start, shape) windows in them."""
    device = "cpu" if device_id is None else "mixed"
    return _ran(
        device_id,
        len(images),
        lambda: decoder(device, images, load, gray, windows),
        times=1 if device_id is None else 3,
    )


def decoder(
    device: str, images: list[Any], load: float | None, gray: bool, windows: list[Any] | None
) -> Any:
    """The DataNode of the decoder, with the options of gpupipe.engines.dali.ops.decode."""
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
    """Batches of JPEG images: one alone, many of one kind, and many of several sizes and kinds (0:
    4:4:4, 1: 4:2:2, 2: 4:2:0 chroma).
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
    """An image file of soft blobs some pixels wide: a part that is cut elsewhere has clearly other
    pixels. turned: its EXIF orientation.
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
    """The start and shape of the n-th window in an image of `shape`: inside it, at its far corner,
    all of it, an odd strip.
    """
    import numpy as np

    high, wide = shape[:2]
    cuts = [
        ((10, 20), (200, 200)),
        ((high - 64, wide - 96), (64, 96)),
        ((0, 0), (high, wide)),
        ((101, 33), (17, 199)),
    ]
    start, size = cuts[(n + n // 6) % 4]  # each of the six kinds of image meets each window
    return np.array(start, np.int32), np.array(size, np.int32)


def _compare(parts: list[Any], whole: list[Any]) -> None:
    """Raises where a part is not that part of its image; decoders may differ by a few levels."""
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
    """Say how many engines nvJPEG counts on the visible GPU, and cores in each."""
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
    """The path of the nvJPEG that DALI brought, or the name of the system's."""
    for name in NVJPEG:
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        found = [str(f.locate()) for f in files if f.name.startswith("libnvjpeg.so")]
        if found:
            return found[0]
    return "libnvjpeg.so.12"


def _main(task: str, *arguments: str) -> None:
    import resource

    resource.setrlimit(
        resource.RLIMIT_CORE, (0, 0)
    )  # a crash that is expected leaves no core file behind
    tasks: dict[str, Callable[..., None]] = {"decode": _decode, "engines": _engines}
    try:
        tasks[task](*arguments)
    except Exception as e:
        sys.exit(
            f"\n{type(e).__name__}: {short(str(e))}"
        )  # on a line of its own: CUDA's libraries do not end theirs


def short(message: str) -> str:
    """What went wrong, out of a message of DALI's: it tells first where in the graph, and last that
    the pipeline is lost.
    """
    core = message.rpartition("encountered:")[2].replace(
        "Current pipeline object is no longer valid.", ""
    )
    return " ".join(core.split())[:300]


if __name__ == "__main__":
    _main(*sys.argv[2:])
