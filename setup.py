"""Builds the optional extensions gpupipe._kernels, _jpeg and _png. All metadata is in setup.cfg.

Where one of them cannot be built, installation goes on without it, and `gpupipe doctor` says so.
With GPUPIPE_KERNELS=on, as for released wheels, that is an error. _jpeg needs libjpeg-turbo, and
_png libpng, with their headers; pkg-config finds those outside of the compiler's own folders.
"""

import os
import shlex
import subprocess
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

_FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",  # all variants compute the same pixels to the bit
    "-fno-math-errno",  # so that llrint is one instruction
    "-fno-trapping-math",  # so that loops with conditions become vectors
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]
_HAS_STABLE_ABI = not sysconfig.get_config_var("Py_GIL_DISABLED")
"""Whether one build serves CPython 3.11 and all newer ones. Free-threaded ones need their own."""
_ABI_FLAGS = ["-DPy_LIMITED_API=0x030B0000"] if _HAS_STABLE_ABI else []


def _ask_pkg_config(option: str, library: str) -> list[str]:
    """Return the flags of a library; none without pkg-config, or if it does not know it."""
    try:
        command = ["pkg-config", option, library]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return shlex.split(done.stdout)


def _extension(name: str, sources: list[Path], flags: list[str], link: list[str]) -> Extension:
    return Extension(
        f"gpupipe.{name}",
        sorted(map(str, sources)),
        depends=sorted(map(str, Path("native").glob("*.h"))),
        extra_compile_args=[*_FLAGS, *_ABI_FLAGS, *flags],
        extra_link_args=link,
        language="c++",
        py_limited_api=_HAS_STABLE_ABI,
        optional=os.environ.get("GPUPIPE_KERNELS") != "on",
    )


def _decoder(name: str, library: str) -> Extension:
    """Return the extension gpupipe._NAME, which decodes with a library, of native/NAME*.cpp."""
    link = _ask_pkg_config("--libs", library) or [f"-l{library.removeprefix('lib')}"]
    sources = list(Path("native").glob(f"{name}*.cpp"))
    return _extension(f"_{name}", sources, _ask_pkg_config("--cflags", library), link)


_decoders = [_decoder("jpeg", "libjpeg"), _decoder("png", "libpng")]
_kernels = [
    source
    for source in Path("native").glob("*.cpp")
    if not any(str(source) in decoder.sources for decoder in _decoders)
]

setup(
    ext_modules=[_extension("_kernels", _kernels, [], []), *_decoders],
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if _HAS_STABLE_ABI else {},
)
