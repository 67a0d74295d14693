"""The child process of capability_probe: decodes images, and prints each stage that it passes.

nvImageCodec prepares samples on several threads only if the batch has more than 4 * (num_threads +
1) samples (DALI's image_decoder.h). Its code path also depends on the batch size, on mixed chroma
subsampling, and on `hw_decoder_load`. The child therefore decodes batches of 1 image, of 128 equal
images and of 132 different ones, on 16 threads, with several values of `hw_decoder_load`. This
file imports nothing from gpupipe, because the child runs it by its path.
"""

import sys
from collections.abc import Callable
from functools import cache
from importlib import metadata
from typing import Any

_THREADS, _MANY = 16, 128
"""Threads of DALI, and images in a large batch. With 4 * (_THREADS + 1) images or fewer, a single
thread would prepare all of them.
"""
NVJPEG = ("nvidia-nvjpeg-cu12", "nvidia-nvjpeg", "nvidia-nvjpeg-cu13")
_HARDWARE = 3  # NVJPEG_BACKEND_HARDWARE of nvjpeg.h
_ABSENT = (7, 9)  # NVJPEG_STATUS_ARCH_MISMATCH, NVJPEG_STATUS_IMPLEMENTATION_NOT_SUPPORTED


def _print_passed_stages(device: str, region: str = "") -> None:
    """Print each stage that `device` ("cpu" or a GPU's number) passes; raise at the first failure.

    Parts of images are tried only if `region` is not empty.
    """
    device_id = None if device == "cpu" else int(device)
    _check_compute(device_id)
    print("pipeline", flush=True)
    for load in hw_decoder_loads(device_id):
        for images in _make_batches():
            _decode_images(device_id, images, load)
    print("decode", flush=True)
    if not region:
        return
    for load in hw_decoder_loads(device_id):
        for gray in (False, True):
            for images in _make_batches():
                whole = _decode_images(device_id, images, load, gray)
                windows = [_window(n, image.shape) for n, image in enumerate(whole)]
                _check_windows(_decode_images(device_id, images, load, gray, windows), whole)
    print("region", flush=True)


def hw_decoder_loads(device_id: int | None) -> tuple[float | None, ...]:
    """Return the values of `hw_decoder_load` to try; (None,) for a CPU, which has none."""
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


def _decode_images(
    device_id: int | None,
    images: list[Any],
    load: float | None,
    gray: bool = False,
    windows: list[Any] | None = None,
) -> list[Any]:
    """Return the pixels of JPEG images; if `windows` is given, only one window of each image."""
    device = "cpu" if device_id is None else "mixed"
    return _run_pipeline(
        device_id,
        len(images),
        lambda: decoder_node(device, images, load, gray, windows),
        times=1 if device_id is None else 3,
    )


def decoder_node(
    device: str, images: list[Any], load: float | None, gray: bool, windows: list[Any] | None
) -> Any:
    """Return the DataNode of the decoder, with the options of `decode` in engines/dali/operators.

    Args:
        device: "cpu" or "mixed".
        images: JPEG files, uint8 (n,) each.
        load: `hw_decoder_load`; None leaves DALI's default.
        gray: Decode to one channel instead of RGB.
        windows: One (start, shape) in (height, width) order for each image; None for whole images.
    """
    from nvidia.dali import fn, types

    options: dict[str, Any] = {} if load is None else {"hw_decoder_load": load}
    options |= {"device": device, "output_type": types.GRAY if gray else types.RGB}
    options |= {"jpeg_fancy_upsampling": True, "adjust_orientation": True}
    data = fn.external_source(lambda: images, batch=True)
    if windows is None:
        return fn.decoders.image(data, **options)
    start, shape = fn.external_source(
        lambda: tuple([w[i] for w in windows] for i in range(2)), batch=True, num_outputs=2
    )
    return fn.decoders.image_slice(data, start=start, shape=shape, axes=[0, 1], **options)


@cache
def _make_batches() -> list[list[Any]]:
    """Return three batches of JPEG images: one image, one image many times, and many of six kinds.

    Pillow's `subsampling` is 0 for 4:4:4, 1 for 4:2:2 and 2 for 4:2:0 chroma.
    """
    plain = _make_jpeg(480, 640, subsampling=2)
    chroma = [_make_jpeg(375, 500, subsampling=0), _make_jpeg(250, 250, subsampling=1)]
    others = [
        _make_jpeg(333, 500, subsampling=2, progressive=True),
        _make_jpeg(375, 500, subsampling=2, turned=6),
        _make_jpeg(300, 400, gray=True),
    ]
    kinds = [plain, *chroma, *others]
    return [[plain], [plain] * _MANY, kinds * -(-_MANY // len(kinds))]


def _make_jpeg(height: int, width: int, turned: int = 1, gray: bool = False, **options: Any) -> Any:
    """Return the bytes of a JPEG image of soft blobs, a uint8 array.

    A window cut at a wrong place would have clearly different pixels. `turned` is the image's EXIF
    orientation.
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
    """Return [top, left] and [height, width] of the window to cut out of image `n` of a batch."""
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


def _check_windows(parts: list[Any], whole: list[Any]) -> None:
    """Raise ValueError if a decoded part differs from the same part of the whole image.

    Pixels, 0 to 255, may differ by up to 4 on average.
    """
    import numpy as np

    for n, (part, image) in enumerate(zip(parts, whole, strict=True)):
        (top, left), (high, wide) = _window(n, image.shape)
        expected = image[top : top + high, left : left + wide].astype(float)
        is_equal_size = part.shape == expected.shape
        difference = float(np.abs(part - expected).mean()) if is_equal_size else 255.0
        if difference > 4:
            by = f"by {difference:.1f} levels on average"
            raise ValueError(f"a part of an image came out wrong, {by}")


def _print_jpeg_engines() -> None:
    """Print how many engines nvJPEG counts on the visible GPU, and how many cores each has."""
    import ctypes

    library = ctypes.CDLL(_find_nvjpeg())
    handle, number, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    status = library.nvjpegCreateEx(_HARDWARE, None, None, 0, ctypes.byref(handle))
    if status == 0:
        outputs = (ctypes.byref(number), ctypes.byref(cores))
        status = library.nvjpegGetHardwareDecoderInfo(handle, *outputs)
    if status not in (0, *_ABSENT):
        sys.exit(f"nvJPEG status {status}")
    print(number.value, cores.value)


def _find_nvjpeg() -> str:
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
    tasks: dict[str, Callable[..., None]] = {
        "decode": _print_passed_stages,
        "engines": _print_jpeg_engines,
    }
    try:
        tasks[task](*arguments)
    except Exception as e:
        # The leading newline: lines that CUDA's libraries print may lack their own.
        sys.exit(f"\n{type(e).__name__}: {extract_cause(str(e))}")


def extract_cause(message: str) -> str:
    """Return the cause in an error message of DALI, at most 300 characters.

    DALI's messages begin with the operator's location in the graph, and end with a sentence that
    the pipeline is no longer valid.
    """
    core = message.rpartition("encountered:")[2]
    core = core.replace("Current pipeline object is no longer valid.", "")
    return " ".join(core.split())[:300]


if __name__ == "__main__":
    _main(*sys.argv[2:])
