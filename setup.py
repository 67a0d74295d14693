"""Builds the optional extension gpupipe._kernels. All metadata is in setup.cfg.

Where it cannot be built, installation goes on without it, and `gpupipe doctor` says so. With
GPUPIPE_KERNELS=on, as for released wheels, that is an error.
"""

import os
from pathlib import Path

from setuptools import Extension, setup

_FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",  # all variants compute the same pixels to the bit
    "-fno-math-errno",  # so that llrint is one instruction
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]

setup(
    ext_modules=[
        Extension(
            "gpupipe._kernels",
            sorted(map(str, Path("native").glob("*.cpp"))),
            depends=sorted(map(str, Path("native").glob("*.h"))),
            extra_compile_args=_FLAGS,
            language="c++",
            optional=os.environ.get("GPUPIPE_KERNELS") != "on",
        )
    ]
)
