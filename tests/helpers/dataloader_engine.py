"""What the tests of the DataLoader engine share."""

import os
import re
from collections.abc import Collection
from multiprocessing import active_children
from pathlib import Path

import torch

from helpers import forked_python
from helpers.loaders import loading

STEPS = [
    {"decode": {"mode": "rgb"}},
    {"random_affine": {"degrees": 20, "translate": [0.1, 0.1], "interpolation": "bilinear"}},
    {"random_crop": {"size": 160}},
    "random_horizontal_flip",
    {"to_dtype": {"dtype": "float32", "scale": True}},
]
BAD = {
    "missing": (None, "no such file or directory"),
    "empty": (b"", "the file is empty"),
    "text": (b"hello world\n" * 50, "not an image in a known format"),
    "cut off": (b"\xff\xd8\xff\xe0" + bytes(100), "was cut off|cannot be decoded"),
}
CORES = len(os.sched_getaffinity(0))


load = loading(STEPS, engine="dataloader", workers=1, batch_size=16)


def same(one: list[dict[str, torch.Tensor]], other: list[dict[str, torch.Tensor]]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
        for a, b in zip(one, other, strict=True)
    )


def left_behind(owners: Collection[int]) -> set[str]:
    """Worker processes, and shared memory that torch made in one of the processes `owners`:
    that of other test processes come and go.
    """
    return {str(c.pid) for c in active_children()} | {
        name
        for name in os.listdir("/dev/shm")
        if (made := re.match(r"(?:torch_|pymp-)(\d+)", name)) and int(made[1]) in owners
    }


def break_(file: Path, kind: str) -> None:
    file.unlink()
    if (content := BAD[kind][0]) is not None:
        file.write_bytes(content)


def python(code: str, folder: Path, has_torch_alone: bool = False) -> str:
    """What a program says that runs in `folder`, which is also the first place where it finds
    modules. has_torch_alone: whether its Python has not imported DALI and gpupipe.
    """
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    }
    done = forked_python.run(
        ["-c", code], env=env, cwd=folder, timeout=100, has_torch_alone=has_torch_alone
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
