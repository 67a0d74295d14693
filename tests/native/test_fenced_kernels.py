"""No kernel reads or writes outside of an image or a batch: fenced_kernels.py in a process."""

from pathlib import Path

import pytest

from helpers import forked_python
from helpers.kernel_variants import extension as extension  # noqa: PLC0414  # skips without it
from native.fenced_kernels import KERNELS

SCRIPT = Path(__file__).with_name("fenced_kernels.py")


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_stays_inside_its_memory(kernel: str) -> None:
    done = forked_python.run([SCRIPT, kernel])
    cases = done.stderr.splitlines()
    assert done.returncode == 0, f"{kernel} ended with {done.returncode}: {cases[-4:]}"
    assert int(done.stdout) == len(cases) > 100
