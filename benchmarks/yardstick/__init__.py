"""The yardstick of benchmarks/core.py: small C++ kernels without a loader around them.

What two cores can do with threads and memory that is used again: an AVX2 warp, libjpeg-turbo's
decode of a window, an antialiased resize, one pass to floats. `build` compiles the sources beside
this file; `Passes` runs them.
"""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np

SOURCES = Path(__file__).parent
_FLAGS = ["-std=c++17", "-O3", "-ffast-math", "-mavx2", "-mfma", "-fPIC", "-shared", "-pthread"]
_WORKLOADS = {
    "affine": (0, 3 * 250 * 250),
    "imagenet_train": (1, 3 * 224 * 224),
    "imagenet_eval": (2, 3 * 224 * 224),
}
_BATCHES = 3


def build(folder: Path) -> tuple[Path | None, str]:
    """Compile the yardstick into `folder`. Returns the library, and why there is none."""
    library = folder / "yardstick.so"
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return None, "there is no C++ compiler"
    if "avx2" not in Path("/proc/cpuinfo").read_text():
        return None, "the processor has no AVX2"
    folder.mkdir(parents=True, exist_ok=True)
    sources = sorted(SOURCES.glob("*.cpp"))
    times = [path.stat().st_mtime for path in SOURCES.iterdir() if path.is_file()]
    if library.exists() and library.stat().st_mtime > max(times):
        return library, ""
    command = [compiler, *_FLAGS, *map(str, sources), "-o", str(library), "-ljpeg"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        error = next((e for e in done.stderr.splitlines() if "error" in e), done.stderr.strip())
        return None, f"the compiler says: {error} (libjpeg-turbo's headers: libjpeg-dev)"
    return library, ""


class Passes:
    """Iterating makes a pass over all images of a folder, and yields their number once."""

    def __init__(
        self,
        library: Path,
        workload: str,
        root: Path,
        batch_size: int,
        threads: int,
        shuffle: bool,
    ) -> None:
        self._run = ctypes.CDLL(str(library)).run_pass
        self._number, values = _WORKLOADS[workload]
        files = [str(path).encode() for path in sorted(root.glob("*/*.jpg"))]
        self._paths = (ctypes.c_char_p * len(files))(*files)
        self._count, self._threads, self._shuffle = len(files), threads, shuffle
        self._batch_size, self._values = batch_size, values
        self._memory = np.zeros((_BATCHES * batch_size, values), np.float32)
        self._seed = 0

    def __iter__(self) -> Iterator[int]:
        self._seed += 1
        order = np.arange(self._count, dtype=np.int32)
        if self._shuffle:
            np.random.default_rng(self._seed).shuffle(order)
        pointer = ctypes.POINTER
        self._run(
            self._number,
            self._threads,
            self._paths,
            order.ctypes.data_as(pointer(ctypes.c_int)),
            self._count,
            self._batch_size,
            ctypes.c_int64(self._values),
            self._memory.ctypes.data_as(pointer(ctypes.c_float)),
            ctypes.c_uint64(self._seed),
        )
        yield self._count
